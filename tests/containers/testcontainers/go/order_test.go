package shop

import (
	"database/sql"
	"os"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	tc "github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/mysql"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"
)

func TestOrderArrives(t *testing.T) {
	ctx := t.Context()
	net := must(network.New(ctx))
	tc.CleanupNetwork(t, net)
	database := must(mysql.Run(ctx, "mysql:8.4.6", network.WithNetwork([]string{"mysql"}, net)))
	tc.CleanupContainer(t, database)
	rabbitmq := must(tc.Run(ctx, "rabbitmq:4.1.4-management", network.WithNetwork([]string{"rabbitmq"}, net),
		tc.WithExposedPorts("5672/tcp"), tc.WithWaitStrategy(wait.ForLog("Server startup complete"))))
	tc.CleanupContainer(t, rabbitmq)
	relay := must(tc.Run(ctx, "outbox-relay:0.1.0-x86_64", network.WithNetwork(nil, net),
		tc.WithExposedPorts("9464/tcp"), tc.WithWaitStrategy(wait.ForHTTP("/livez")),
		tc.WithFiles(tc.ContainerFile{HostFilePath: "relay.toml", ContainerFilePath: "/relay.toml", FileMode: 0o644}),
		tc.WithEnv(map[string]string{"RELAY_CONFIG": "/relay.toml"})))
	tc.CleanupContainer(t, relay)
	code, _, err := relay.Exec(ctx, []string{"relay", "migrate", "up"})
	require.NoError(t, err)
	require.Zero(t, code)
	broker := must(amqp.Dial(must(rabbitmq.PortEndpoint(ctx, "5672/tcp", "amqp"))))
	channel := must(broker.Channel())
	must(channel.QueueDeclare("orders", true, false, false, false, nil))
	orders := must(channel.Consume("orders", "", true, false, false, false, nil))
	db := must(sql.Open("mysql", must(database.ConnectionString(ctx, "multiStatements=true"))))
	must(db.Exec(string(must(os.ReadFile("enqueue.sql")))))
	select {
	case order := <-orders:
		require.Equal(t, `{"order":42}`, string(order.Body))
	case <-time.After(30 * time.Second):
		t.Fatal("no order arrived")
	}
}

// must is for the calls of a test, in which a panic is an end like others.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
