import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;

import com.rabbitmq.client.ConnectionFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.Network;
import org.testcontainers.containers.wait.strategy.Wait;
import org.testcontainers.lifecycle.Startables;
import org.testcontainers.mysql.MySQLContainer;
import org.testcontainers.rabbitmq.RabbitMQContainer;
import org.testcontainers.utility.MountableFile;

class OrderTest {
    @Test
    void anOrderArrives() throws Exception {
        try (var network = Network.newNetwork();
             var mysql = new MySQLContainer("mysql:8.4.6");
             var rabbitmq = new RabbitMQContainer("rabbitmq:4.1.4-management");
             var relay = new GenericContainer<>("outbox-relay:0.1.0-x86_64")) {
            mysql.withNetwork(network).withNetworkAliases("mysql");
            rabbitmq.withNetwork(network).withNetworkAliases("rabbitmq");
            relay.withNetwork(network).withExposedPorts(9464).waitingFor(Wait.forHttp("/livez"))
                .withCopyFileToContainer(MountableFile.forHostPath("relay.toml"), "/relay.toml")
                .withEnv("RELAY_CONFIG", "/relay.toml");
            Startables.deepStart(mysql, rabbitmq, relay).get();
            var migrated = relay.execInContainer("relay", "migrate", "up");
            assertEquals(0, migrated.getExitCode(), migrated.getStderr());

            var broker = new ConnectionFactory();
            broker.setUri(rabbitmq.getAmqpUrl());
            try (var connection = broker.newConnection();
                 var channel = connection.createChannel();
                 var database = mysql.createConnection("?allowMultiQueries=true");
                 var statement = database.createStatement()) {
                var arrived = new CompletableFuture<byte[]>();
                channel.queueDeclare("orders", true, false, false, null);
                channel.basicConsume("orders", true, (tag, order) -> arrived.complete(order.getBody()), tag -> {});
                statement.execute(Files.readString(Path.of("enqueue.sql")));
                assertEquals("{\"order\":42}", new String(arrived.get(30, SECONDS), UTF_8));
            }
        }
    }
}
