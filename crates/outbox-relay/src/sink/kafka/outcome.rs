//! The meaning of Kafka's error codes for a message.

use rdkafka::error::RDKafkaErrorCode as Code;

use crate::{
    driver_errors::{Trouble, explain},
    sink::PublishError,
};

/// Returns the outcome of a message that librdkafka took and then reported as failed.
///
/// Only the listed codes are refusals. No code means *unavailable* here. A message in the local queue may have been on
/// the wire before, in a request that was retried. So even "purged in queue" does not say that it did not arrive.
pub(super) fn reported(code: Code) -> PublishError {
    refusal(code, "the broker refused it: raise the topic's max.message.bytes")
        .unwrap_or_else(|| PublishError::Unconfirmed(code.to_string()))
}

/// Returns the outcome of a message that librdkafka did not take: it surely did not arrive.
pub(super) fn refused(code: Code) -> PublishError {
    refusal(code, "the relay's producer refused it: raise \"message.max.bytes\" in the sink's properties")
        .unwrap_or_else(|| PublishError::Unavailable(code.to_string()))
}

/// Whether the broker may have refused this message only because of another one in the same request. Kafka judges a
/// request as a whole. The size of the request counts, and one record that is invalid or too old fails all.
pub(super) fn is_shared_fate(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge | Code::InvalidDifferentRecord | Code::InvalidRecord | Code::InvalidTimestamp
    )
}

/// Whether the relay gave the message up.
pub(super) fn is_given_up(code: Code) -> bool {
    matches!(code, Code::PurgeQueue | Code::PurgeInflight)
}

/// Whether a known topic is missing now.
pub(super) fn is_missing_topic(code: Code) -> bool {
    matches!(code, Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition)
}

/// Returns the judgement of the message or of its topic; `None` if the broker may take the message. `limit` says which
/// limit a message that is too large has met.
fn refusal(code: Code, limit: &str) -> Option<PublishError> {
    let rejected = |reason| Some(PublishError::Rejected { reason, detail: code.to_string() });
    let unroutable = |reason| Some(PublishError::Unroutable { reason, detail: code.to_string() });
    match code {
        Code::MessageSizeTooLarge => {
            Some(PublishError::Rejected { reason: "too_large", detail: format!("{limit} ({code})") })
        }
        Code::InvalidMessageSize | Code::MessageBatchTooLarge => rejected("too_large"),
        Code::InvalidRecord | Code::InvalidTopic | Code::InvalidTimestamp => rejected("invalid"),
        Code::PolicyViolation => rejected("refused"),
        Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition => unroutable("unroutable"),
        Code::TopicAuthorizationFailed => {
            let detail = explain(Trouble::Kafka(&code.to_string()));
            Some(PublishError::Unroutable { reason: "refused", detail })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Code, refused, reported};
    use crate::sink::PublishError;

    #[test]
    fn what_nobody_knows_is_unconfirmed() {
        for code in [
            Code::MessageTimedOut,
            Code::PurgeQueue,
            Code::PurgeInflight,
            Code::BrokerTransportFailure,
            Code::RequestTimedOut,
            Code::NotEnoughReplicasAfterAppend,
            Code::OutOfOrderSequenceNumber,
            Code::Fatal,
            Code::Unknown,
        ] {
            assert!(matches!(reported(code), PublishError::Unconfirmed(_)), "{code}");
        }
    }

    #[test]
    fn only_the_listed_codes_reject() {
        let listed = [
            (Code::MessageSizeTooLarge, "too_large"),
            (Code::InvalidRecord, "invalid"),
            (Code::PolicyViolation, "refused"),
        ];
        for (code, expected) in listed {
            assert!(matches!(reported(code), PublishError::Rejected { reason, .. } if reason == expected), "{code}");
        }
    }

    #[test]
    fn what_is_wrong_with_the_topic_is_no_fault_of_the_message() {
        for (code, expected) in
            [(Code::UnknownTopicOrPartition, "unroutable"), (Code::TopicAuthorizationFailed, "refused")]
        {
            assert!(matches!(reported(code), PublishError::Unroutable { reason, .. } if reason == expected), "{code}");
        }
    }

    #[test]
    fn what_was_never_taken_is_unavailable() {
        assert!(matches!(refused(Code::QueueFull), PublishError::Unavailable(_)));
    }

    #[test]
    fn a_refusal_for_the_size_names_the_setting_of_the_side_that_refused() {
        let code = Code::MessageSizeTooLarge;
        for (error, setting) in [(refused(code), "message.max.bytes"), (reported(code), "max.message.bytes")] {
            assert!(
                matches!(&error, PublishError::Rejected { reason: "too_large", detail } if detail.contains(setting)),
                "{error}"
            );
        }
    }
}
