//! An issuer of tokens: JSON Web Tokens with a signature of ES256.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, anyhow};
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
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING as ES256, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

/// How long a token is valid, in seconds. librdkafka fetches the next one after four fifths of it.
const LIFE: u64 = 5;

/// An issuer of tokens: `/token` takes a client's secret, `/keys` has the public key.
pub(crate) struct Issuer {
    pub(crate) address: String,
    key: EcdsaKeyPair,
    issued: AtomicUsize,
}

impl Issuer {
    pub(crate) async fn start(server: &mut JoinSet<()>) -> Result<Arc<Self>> {
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

    /// The number of tokens that were fetched.
    pub(crate) fn issued(&self) -> usize {
        self.issued.load(Ordering::SeqCst)
    }

    /// The public key in a file's form: RFC 5480.
    pub(crate) fn pem(&self) -> String {
        const OF_P256: [u8; 26] =
            *b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
        let der = [&OF_P256, self.key.public_key().as_ref()].concat();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
    }

    /// Returns a token that is valid for this number of seconds.
    pub(crate) fn sign(&self, audience: &str, scope: &str, life: u64) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let claims = json!({
            "iss": self.address, "aud": audience, "sub": "relay", "scope": scope, "iat": now, "exp": now + life
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
    let token = issuer.sign("kafka", "write", LIFE).map_err(|_error| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(reply(&json!({"access_token": token, "token_type": "Bearer", "expires_in": LIFE})))
}
