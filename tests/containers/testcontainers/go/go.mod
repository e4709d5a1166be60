module testcontainers-go

go 1.26

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/rabbitmq/amqp091-go v1.16.0
	github.com/stretchr/testify v1.11.1
	github.com/testcontainers/testcontainers-go v0.45.0
	github.com/testcontainers/testcontainers-go/modules/mysql v0.45.0
)
