package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// ErrEvicts: the server evicts keys when its memory is full. Check's error matches it.
var ErrEvicts = errors.New("redis evicts keys")

// Check reads the settings of the server, or of every primary of a cluster. It returns an error for an eviction policy
// other than noeviction, and for a server that is no primary. The warnings name settings by which a crash or a failover
// loses keys; without a warning it may still lose some, as the package's comment says. Where CONFIG is forbidden, Check
// uses INFO alone.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return check(ctx, s.client)
	}
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		some, err := check(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		for _, w := range some {
			warnings = append(warnings, node.Options().Addr+": "+w)
		}
		return err
	})
	return warnings, err
}

func check(ctx context.Context, node redis.UniversalClient) ([]string, error) {
	text, err := node.Info(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("redisstore: check the server: %w", err)
	}
	info := map[string]string{}
	for _, line := range strings.Split(text, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			info[name] = value
		}
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" {
		return nil, fmt.Errorf("redisstore: %w (maxmemory-policy %s): set it to noeviction, or keep idempotency keys "+
			"on a server of their own", ErrEvicts, policy)
	}
	if role := info["role"]; role != "master" {
		return nil, fmt.Errorf("redisstore: the server is a %s: connect to the primary", role)
	}
	var warnings []string
	switch fsync := setting(ctx, node, "appendfsync"); {
	case info["aof_enabled"] != "1":
		warnings = append(warnings, "appendonly is off: a restart forgets every key since the last snapshot, and "+
			"their work may run twice")
	case fsync == "":
		warnings = append(warnings, "appendfsync cannot be read: unless it is always, a crash forgets the last keys")
	case fsync != "always":
		warnings = append(warnings, "appendfsync is "+fsync+": a crash of the machine forgets up to the last second "+
			"(everysec) or more (no)")
	}
	if info["connected_slaves"] != "0" && setting(ctx, node, "min-replicas-to-write") == "0" {
		warnings = append(warnings, "min-replicas-to-write is 0: a primary that is cut off goes on to promise what "+
			"its successor does not know")
	}
	return warnings, nil
}

// setting returns a setting's value, or "" if it cannot be read.
func setting(ctx context.Context, node redis.UniversalClient, name string) string {
	m, err := node.ConfigGet(ctx, name).Result()
	if err != nil {
		return ""
	}
	return m[name]
}
