// Package devstack runs a Postgres and a Kafka on a machine that has neither: a real Postgres, downloaded once and
// started as a child process, and an imitation of Kafka in this process. The demo deletes their data at the end,
// relay-dev keeps it in a folder. Do not use it for data that matters.
package devstack

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// Config of a server. The zero value is a server whose data is temporary, on a free port.
type Config struct {
	// Dir has the data, in a folder of its own, also for the next start. Required for StartPostgres.
	Dir string
	// Keep makes the data survive the server, and a crash. Otherwise the server trades durability for speed.
	Keep bool
	// Port of 127.0.0.1. If it is 0 or not free, the server takes any free port.
	Port int
}

// Folder makes a folder and locks it for this process until unlock. An empty path means a folder in the user's cache.
func Folder(dir string) (path string, unlock func(), err error) {
	if dir == "" {
		cache, err := cacheDir()
		if err != nil {
			return "", nil, err
		}
		dir = filepath.Join(cache, "dev")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	lock := filepath.Join(dir, "lock")
	free, ok := child.Lock(lock)
	if !ok {
		return "", nil, fmt.Errorf("%s is another's: it runs already, or the folder is not writable", dir)
	}
	return dir, func() {
		free()
		if runtime.GOOS == "windows" { // the file itself is the lock there
			_ = os.Remove(lock)
		}
	}, nil
}

// Kafka is a cluster in this process, on 127.0.0.1.
type Kafka struct {
	cluster *kfake.Cluster
	away    *atomic.Bool
}

// run lets away answer for the cluster.
func run(cluster *kfake.Cluster) *Kafka {
	k := &Kafka{cluster, new(atomic.Bool)}
	cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return nil, errAway, k.away.Load()
	})
	return k
}

var errAway = errors.New("Kafka is away")

// StartKafka starts three brokers; with Keep, at Port and the ports after it.
func StartKafka(cfg Config) (*Kafka, error) {
	options := []kfake.Opt{kfake.NumBrokers(3)}
	if cfg.Keep {
		// A new folder means a new cluster: its logs begin at 0.
		options = append(options, kfake.DataDir(filepath.Join(cfg.Dir, "kafka")), kfake.ClusterID(rand.Text()))
	}
	if cfg.Keep && cfg.Port != 0 {
		ports := kfake.Ports(cfg.Port, cfg.Port+1, cfg.Port+2)
		if cluster, err := kfake.NewCluster(append(slices.Clone(options), ports)...); err == nil {
			return run(cluster), nil
		}
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		return nil, fmt.Errorf("starting the in-process Kafka: %w", err)
	}
	return run(cluster), nil
}

// Brokers returns its addresses, host:port.
func (k *Kafka) Brokers() []string { return k.cluster.ListenAddrs() }

// Away makes the brokers close each connection at its first request, until it is called with false.
func (k *Kafka) Away(away bool) { k.away.Store(away) }

// Close stops the brokers and closes their connections.
func (k *Kafka) Close() { k.cluster.Close() }
