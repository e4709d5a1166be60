#!/bin/sh
# shellcheck disable=SC2086 # a list of words
exec java ${KAFKA_HEAP_OPTS:-} -cp '/opt/kafka/libs/*' org.apache.kafka.tools.TopicCommand "$@"
