package kafkatest

import (
	"cmp"
	"os"
	"strings"

	"github.com/effectonce/effectonce/internal/testenv/maven"
)

// EnvVersion is the variable for the version of Kafka to test with.
const EnvVersion = "EFFECTONCE_TEST_KAFKA_VERSION"

func version() string { return cmp.Or(os.Getenv(EnvVersion), "4.1.0") }

const logger = "org.slf4j:slf4j-simple:1.7.36"

// handlerVersion is the version of Strimzi's callback handler, which validates tokens by introspection. Kafka's own
// handlers accept only JWTs.
const handlerVersion = "0.17.1"

// HandlerLibs returns the directory with the jars that a Secure needs beside Kafka's; see Libs.
func HandlerLibs() (string, error) {
	return maven.Jars("strimzi-oauth-"+handlerVersion, "io.strimzi:kafka-oauth-server:"+handlerVersion)
}

// Libs returns the directory with Kafka's jars. The first call downloads them with Maven. Several processes may call it
// concurrently.
func Libs() (string, error) { return libs(version()) }

// SecureLibs is Libs for a Secure: without ZooKeeper, Kafka has passwords for SCRAM from 3.5 on (KIP-900).
func SecureLibs() (string, error) {
	v := version()
	if strings.HasPrefix(v, "3.3.") || strings.HasPrefix(v, "3.4.") {
		v = "3.9.2"
	}
	return libs(v)
}

func libs(v string) (string, error) {
	return maven.Jars("kafka-"+v, "org.apache.kafka:kafka_2.13:"+v, "org.apache.kafka:kafka-tools:"+v, logger)
}
