//! Tokens of an issuer for Kafka (OAUTHBEARER, client credentials), which expire while relays and consumers run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, anyhow, ensure};
use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as BASE64},
};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use outbox_consumer::{handler_fn, kafka};
use outbox_core::sqlx::{self, MySqlPool};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING as ES256, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};
use testkit::{
    consume::{Broker, Topic},
    servers::{Kafka, until},
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinSet};

use crate::{check, login::PATIENCE, rotation::Rotation};

/// How long a token is valid, in seconds. librdkafka fetches the next one after four fifths of it.
const LIFE: u64 = 5;

/// An issuer of tokens: `/token` takes a client's secret, `/keys` has the public key.
struct Issuer {
    address: String,
    key: EcdsaKeyPair,
    issued: AtomicUsize,
}

impl Issuer {
    async fn start(server: &mut JoinSet<()>) -> Result<Arc<Self>> {
        let random = SystemRandom::new();
        let wrong = |error| anyhow!("no key: {error}");
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ES256, &random).map_err(|error| anyhow!("no key: {error}"))?;
        let key = EcdsaKeyPair::from_pkcs8(&ES256, pkcs8.as_ref(), &random).map_err(wrong)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        let issuer = Arc::new(Self { address, key, issued: AtomicUsize::new(0) });
        let routes = Router::new().route("/keys", get(keys)).route("/token", post(token));
        let routes = routes.with_state(Arc::clone(&issuer));
        server.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(routes.clone());
                open.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(issuer)
    }

    fn issued(&self) -> usize {
        self.issued.load(Ordering::SeqCst)
    }

    fn sign(&self) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let claims = json!({
            "iss": self.address, "aud": "kafka", "sub": "relay", "scope": "write", "iat": now, "exp": now + LIFE
        });
        let head = json!({"alg": "ES256", "kid": "1", "typ": "JWT"});
        let signed = [head, claims].map(|part| BASE64.encode(part.to_string())).join(".");
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).map_err(|error| anyhow!("{error}"))?;
        Ok(format!("{signed}.{}", BASE64.encode(signature)))
    }
}

fn reply(body: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// The public key: RFC 7517 and 7518.
async fn keys(State(issuer): State<Arc<Issuer>>) -> Response {
    let (x, y) = issuer.key.public_key().as_ref().split_at(1).1.split_at(32);
    let [x, y] = [x, y].map(|half| BASE64.encode(half));
    reply(&json!({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "1", "x": x, "y": y}]}))
}

/// The grant of client credentials: RFC 6749, section 4.4.
async fn token(State(issuer): State<Arc<Issuer>>, headers: HeaderMap) -> Result<Response, StatusCode> {
    let login = format!("Basic {}", STANDARD.encode("relay:hunter2"));
    if headers.get(AUTHORIZATION).is_none_or(|given| given.as_bytes() != login.as_bytes()) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    issuer.issued.fetch_add(1, Ordering::SeqCst);
    let token = issuer.sign().map_err(|_error| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(reply(&json!({"access_token": token, "token_type": "Bearer", "expires_in": LIFE})))
}

/// Returns a broker whose listener behind the proxy takes tokens of this issuer until they expire.
async fn broker(issuer: &str) -> Result<Kafka> {
    let checks = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler";
    let module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;";
    Kafka::with(&[
        ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_PLAINTEXT"),
        ("listener.name.proxied.oauthbearer.connections.max.reauth.ms", "60000"),
        ("listener.name.proxied.oauthbearer.sasl.jaas.config", module),
        ("listener.name.proxied.oauthbearer.sasl.server.callback.handler.class", checks),
        ("sasl.enabled.mechanisms", "OAUTHBEARER"),
        ("sasl.oauthbearer.clock.skew.seconds", "0"),
        ("sasl.oauthbearer.expected.audience", "kafka"),
        ("sasl.oauthbearer.expected.issuer", issuer),
        // The default of Kafka 4.1.0 takes a token of anyone.
        ("sasl.oauthbearer.jwt.validator.class", "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator"),
        ("sasl.oauthbearer.jwks.endpoint.url", &format!("{issuer}/keys")),
    ])
    .await
}

fn login<'a>(endpoint: &'a str, secret: &'a str) -> [(&'a str, &'a str); 6] {
    [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.method", "oidc"),
        ("sasl.oauthbearer.client.id", "relay"),
        ("sasl.oauthbearer.client.secret", secret),
        ("sasl.oauthbearer.token.endpoint.url", endpoint),
    ]
}

fn is_refused(brokers: &str, endpoint: &str, secret: &str, sentence: &str) -> Result<()> {
    let properties = login(endpoint, secret).map(|(name, value)| format!("\"{name}\" = \"{value}\"")).join(", ");
    let found = check::kafka(brokers, &properties)?;
    ensure!(!found.ok && found.detail.contains(sentence), "{}", found.detail);
    ensure!(!found.detail.contains(secret), "{}", found.detail);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_for_kafka_are_fetched_again_before_they_expire() -> Result<()> {
    let mut tasks = JoinSet::new();
    let issuer = Issuer::start(&mut tasks).await?;
    let endpoint = format!("{}/token", issuer.address);
    let server = broker(&issuer.address).await?;
    let proxy = server.proxy().await?;
    is_refused(proxy.address(), &endpoint, "wrong", "the issuer gives no token")?;
    is_refused(proxy.address(), "http://127.0.0.1:1/token", "hunter2", "the issuer gives no token")?;
    let stranger = Issuer::start(&mut tasks).await?;
    let foreign = format!("{}/token", stranger.address);
    is_refused(proxy.address(), &foreign, "hunter2", "the broker does not take the issuer's token")?;
    let rotation = Rotation::new(Topic::create_on(Broker::Kafka, &server.bootstrap()).await?).await?;
    let mut settings = rotation.settings()?.with_broker_of(&rotation.topic).kafka(proxy.address());
    let pool = MySqlPool::connect(rotation.database.url()).await?;
    let mut consumer = kafka::Consumer::new(proxy.address(), "billing", pool)?.topic(rotation.topic.name());
    for (name, value) in login(&endpoint, "hunter2") {
        settings = settings.kafka_property(name, value);
        consumer = consumer.property(name, value);
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let handler = handler_fn(|tx, message| {
        Box::pin(async move {
            let effect = sqlx::query("INSERT INTO test_effects (message_id) VALUES (?)");
            effect.bind(message.id.as_bytes().as_slice()).execute(tx).await?;
            Ok(())
        })
    });
    let consumer = tokio::spawn(consumer.run(handler, async { drop(stopped.await) }));
    let several = async |rotation: &Rotation| {
        until(PATIENCE, "the tokens of two clients, four times", || async {
            rotation.commit().await?;
            ensure!(issuer.issued() >= 8, "{} tokens", issuer.issued());
            Ok(())
        })
        .await?;
        let processed = "SELECT (SELECT COUNT(*) FROM outbox_sent_messages) = (SELECT COUNT(*) FROM inbox_processed)";
        rotation.database.wait_until_drained(PATIENCE).await?;
        rotation.database.wait_for(PATIENCE, processed).await
    };
    Box::pin(rotation.survives(settings, several)).await?;
    stop.send(()).map_err(|()| anyhow!("the consumer has ended"))?;
    consumer.await??;
    Ok(())
}
