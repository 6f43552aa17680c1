package kafkatest

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"
)

func startFake() (brokers []string, stop func(), err error) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return nil, nil, fmt.Errorf("start kfake: %w", err)
	}
	return k.ListenAddrs(), k.Close, nil
}
