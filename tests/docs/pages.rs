//! The code of the pages, as it stands there, so that it compiles. Nothing of it runs here.
#![expect(
    clippy::print_stdout,
    dead_code,
    unused_mut,
    reason = "to be compiled, and without the work that the pages leave out"
)]

mod send {
    use outbox_core::{Message, Outbox, sqlx};

    async fn pay(pool: &sqlx::MySqlPool, id: u64, body: Vec<u8>) -> anyhow::Result<()> {
        let mut tx = pool.begin().await?;
        sqlx::query("UPDATE orders SET state = 'paid' WHERE id = ?").bind(id).execute(&mut *tx).await?;
        let paid = Message::new("orders", body).key(id.to_string()).event_type("order.paid");
        Outbox::new().enqueue(&mut tx, paid).await?;
        Ok(tx.commit().await?)
    }
}

mod receive {
    use outbox_consumer::{Delivery, Failure, Handler, kafka, stop_signal};
    use outbox_core::sqlx::{self, MySqlConnection, MySqlPool};

    struct Billing;

    impl Handler for Billing {
        async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
            let order: u64 = message.json()?; // or a struct that derives Deserialize
            sqlx::query("INSERT INTO invoices (order_id) VALUES (?)").bind(order).execute(tx).await?;
            Ok(())
        }
    }

    async fn receive(pool: MySqlPool) -> anyhow::Result<()> {
        let consumer = kafka::Consumer::new("127.0.0.1:9092", "billing", pool)?.topic("orders");
        Ok(consumer.run(Billing, stop_signal()).await?)
    }
}

mod receive_in_a_loop_of_ones_own {
    use outbox_core::{Claim, Inbox, Uuid, sqlx::MySqlPool};

    async fn on_message(pool: &MySqlPool, message_id: Uuid) -> anyhow::Result<()> {
        match Inbox::new("billing")?.admit(pool, message_id).await? {
            Claim::First(mut tx) => {
                // the work, in this transaction
                tx.commit().await?;
            }
            Claim::Duplicate => {} // it was done before
        }
        Ok(()) // now acknowledge to the broker
    }
}

mod work {
    use outbox_core::sqlx::{self, MySqlConnection, MySqlPool};
    use outbox_relay::worker::{Delivery, Failure, Handler, Worker, stop_signal};

    async fn work(pool: MySqlPool) -> anyhow::Result<()> {
        Ok(Worker::new(pool.connect_options(), 7).concurrency(8).run(Billing, stop_signal()).await?)
    }

    struct Billing;

    impl Handler for Billing {
        async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
            let order: u64 = message.json()?;
            sqlx::query("INSERT INTO invoices (order_id) VALUES (?)").bind(order).execute(tx).await?;
            Ok(())
        }
    }
}

mod start_to_send {
    use outbox_core::{Message, Outbox, sqlx::MySqlPool};

    #[tokio::main]
    async fn main() -> anyhow::Result<()> {
        let pool = MySqlPool::connect("mysql://root@127.0.0.1:3306/shop").await?;
        let mut tx = pool.begin().await?;
        // The rows of the service, in this transaction.
        let placed = Message::new("orders", r#"{"order":42}"#).key("42").event_type("order.placed");
        println!("{}", Outbox::new().enqueue(&mut tx, placed).await?);
        Ok(tx.commit().await?)
    }
}

mod start_to_receive {
    use std::collections::HashMap;

    use outbox_consumer::{handler_fn, kafka, stop_signal};
    use outbox_core::sqlx::MySqlPool;

    #[tokio::main]
    async fn main() -> anyhow::Result<()> {
        tracing_subscriber::fmt::init(); // the log says what a consumer waits for
        let pool = MySqlPool::connect("mysql://root@127.0.0.1:3306/shop").await?;
        let handler = handler_fn(|_tx, message| {
            Box::pin(async move {
                let order: HashMap<String, u64> = message.json()?;
                println!("{} {order:?}", message.id);
                Ok(())
            })
        });
        let consumer = kafka::Consumer::new("127.0.0.1:9092", "billing", pool)?.topic("orders");
        Ok(consumer.run(handler, stop_signal()).await?)
    }
}

use anyhow::Result;
use outbox_core::{
    sqlx::MySqlPool,
    test::{Drain, Fault, Published},
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Order {
    id: u64,
}

async fn work(pool: MySqlPool) -> Result<()> {
    use outbox_core::sqlx::{self, MySqlConnection};
    use outbox_relay::worker::{Delivery, Failure, Handler, Worker, stop_signal};

    struct Billing;

    impl Handler for Billing {
        async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
            let order: Order = message.json()?;
            sqlx::query("INSERT INTO invoices (order_id) VALUES (?)").bind(order.id).execute(tx).await?;
            Ok(())
        }
    }

    Worker::new(pool.connect_options(), 7).concurrency(8).batch(10).run(Billing, stop_signal()).await?;
    Ok(())
}

async fn bill(pool: &MySqlPool, _message: Published) -> Result<()> {
    Ok(pool.begin().await?.commit().await?)
}

async fn test_a_service(pool: MySqlPool) -> Result<()> {
    let published = Drain::new().run(&pool).await?;
    drop(published);
    let published = Drain::new().at(1, Fault::AcknowledgementLost).run(&pool).await?;
    for message in published {
        bill(&pool, message).await?; // the inbox, the handler, the commit
    }
    Ok(())
}
