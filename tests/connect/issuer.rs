//! An issuer of tokens: JSON Web Tokens with a signature of ES256.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as BASE64},
};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING as ES256, EcdsaKeyPair, KeyPair as _},
};
use serde_json::json;

/// An issuer with a key of its own.
pub(crate) struct Issuer(EcdsaKeyPair);

impl Issuer {
    pub(crate) fn new() -> Result<Self> {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ES256, &random).map_err(|error| anyhow!("no key: {error}"))?;
        let key = EcdsaKeyPair::from_pkcs8(&ES256, pkcs8.as_ref(), &random);
        Ok(Self(key.map_err(|error| anyhow!("no key: {error}"))?))
    }

    /// The public key in a file's form: RFC 5480.
    pub(crate) fn pem(&self) -> String {
        const OF_P256: [u8; 26] =
            *b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
        let der = [&OF_P256, self.0.public_key().as_ref()].concat();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
    }

    /// Returns a token that is valid for this number of seconds.
    pub(crate) fn sign(&self, audience: &str, scope: &str, life: u64) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let claims = json!({"aud": audience, "sub": "relay", "scope": scope, "iat": now, "exp": now + life});
        let head = json!({"alg": "ES256", "kid": "1", "typ": "JWT"});
        let signed = [head, claims].map(|part| BASE64.encode(part.to_string())).join(".");
        let signature = self.0.sign(&SystemRandom::new(), signed.as_bytes()).map_err(|error| anyhow!("{error}"))?;
        Ok(format!("{signed}.{}", BASE64.encode(signature)))
    }
}
