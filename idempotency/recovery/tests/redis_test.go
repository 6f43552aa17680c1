package recovery_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/effectonce/effectonce/internal/testenv/redistest"
)

// redisClient returns a client of the shared server.
func redisClient(t testing.TB) *redis.Client {
	t.Helper()
	return redisAt(t, redistest.Addr(t), nil)
}

// redisAt returns a client of a server, closed with the test.
func redisAt(t testing.TB, addr string, change func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{
		Addr: addr, ReadTimeout: 20 * time.Second,
		// Otherwise the client leaves a goroutine behind when it is closed.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if change != nil {
		change(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
