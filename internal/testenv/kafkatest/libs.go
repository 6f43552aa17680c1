package kafkatest

import (
	"cmp"
	"os"

	"github.com/effectonce/effectonce/internal/testenv/maven"
)

// EnvVersion names the version of Kafka that the tests run against, in place of the usual one.
const EnvVersion = "EFFECTONCE_TEST_KAFKA_VERSION"

func version() string { return cmp.Or(os.Getenv(EnvVersion), "4.1.0") }

// logger is what Kafka's programs log with.
const logger = "org.slf4j:slf4j-simple:1.7.36"

// Libs returns the directory with Kafka's jars, fetched with Maven the first time. Several processes may call it at
// once.
func Libs() (string, error) {
	v := version()
	return maven.Jars("kafka-"+v, "org.apache.kafka:kafka_2.13:"+v, "org.apache.kafka:kafka-tools:"+v, logger)
}
