//go:build !kfake

package kafkatest

import "errors"

// kfake does not compile with the franz-go that go.mod pins, so the imitation is built only on request.
func startFake() (brokers []string, stop func(), err error) {
	return nil, nil, errors.New("this build has no imitation of Kafka (build tag kfake)")
}
