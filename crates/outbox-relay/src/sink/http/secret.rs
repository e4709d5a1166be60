//! Signatures by [Standard Webhooks](https://www.standardwebhooks.com).

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

/// Reads secrets that are separated by blanks; `None` if one of them is not of the specification's form, or there is
/// none.
pub(super) fn keys(text: &str) -> Option<Vec<Vec<u8>>> {
    let keys: Vec<_> = text.split_whitespace().map(key).collect::<Option<_>>()?;
    (!keys.is_empty()).then_some(keys)
}

fn key(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text.strip_prefix("whsec_")?).ok().filter(|key| (24..=64).contains(&key.len()))
}

/// Returns the header `webhook-signature`: one signature for each key.
#[cfg(feature = "http")]
pub(super) fn signatures(keys: &[Vec<u8>], id: &str, timestamp: u64, body: &[u8]) -> String {
    use ring::hmac::{Context, HMAC_SHA256, Key};
    let signature = |key: &Vec<u8>| {
        let mut context = Context::with_key(&Key::new(HMAC_SHA256, key));
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("v1,{}", BASE64.encode(context.sign()))
    };
    keys.iter().map(signature).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// The example of the reference libraries.
    #[cfg(feature = "http")]
    #[test]
    fn the_signature_is_that_of_the_reference() {
        let sign = |secrets: &str| {
            let keys = keys(secrets).unwrap();
            signatures(&keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}")
        };
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(sign(SECRET), signature);
        let two = sign(&format!("whsec_{} {SECRET}", BASE64.encode([7; 64])));
        assert!(two.starts_with("v1,") && two.ends_with(&format!(" {signature}")), "{two}");
    }

    #[test]
    fn a_secret_of_another_form_is_refused() {
        let of = |bytes: usize| format!("whsec_{}", BASE64.encode(vec![7; bytes]));
        for text in ["", " ", "secret", "whsec_", &SECRET[6..], "whsec_!", &of(23), &of(65), &format!("{SECRET} x")] {
            assert_eq!(keys(text), None, "{text}");
        }
        assert_eq!(keys(&format!("{} {}\n", of(24), of(64))).map(|keys| keys.len()), Some(2));
    }
}
