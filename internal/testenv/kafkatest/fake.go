package kafkatest

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

func startFake() (brokers []string, stop func(), err error) {
	// The real one of this package allows such sessions, too.
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(500*time.Millisecond))
	if err != nil {
		return nil, nil, fmt.Errorf("start kfake: %w", err)
	}
	return k.ListenAddrs(), k.Close, nil
}
