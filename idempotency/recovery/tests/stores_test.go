package recovery_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/redis/go-redis/v9"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/dynamostore"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/redisstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/dynamotest"
	"github.com/effectonce/effectonce/internal/testenv/fakeprovider"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/internal/testenv/redistest"
)

// TestRecovery_OverRedis: a paying process crashes before and after each write and each call, the provider's answers
// are lost, and it is not idempotent. Recovery asks it, and there is one charge and one mail, as over Postgres.
func TestRecovery_OverRedis(t *testing.T) {
	t.Parallel()
	crashAndRecover(t, redisStore(redisClient(t), redistest.Prefix()))
}

func redisStore(client *redis.Client, prefix string) store.Recoverable {
	s, err := redisstore.New(client, redisstore.Config{Prefix: prefix})
	if err != nil {
		panic(err)
	}
	return s
}

// TestRecovery_OverDynamoDB: likewise.
func TestRecovery_OverDynamoDB(t *testing.T) {
	t.Parallel()
	client, table := dynamoAt(t, dynamotest.URL(t), nil), "test-"+rand.Text()
	if err := dynamostore.CreateTable(t.Context(), client, table); err != nil {
		t.Fatal(err)
	}
	crashAndRecover(t, dynamoStore(client, table))
}

// dynamoStore returns a store without clock skew, for a single server.
func dynamoStore(client *dynamodb.Client, table string) store.Recoverable {
	s, err := dynamostore.New(client, table, dynamostore.Config{Skew: -1})
	if err != nil {
		panic(err)
	}
	return s
}

// caller is a caller whose process crashes.
type caller struct {
	*world
	request idempotency.Request
}

// crashAndRecover crashes the processes of callers, each at its point, and recovers until each caller has its answer.
func crashAndRecover(t *testing.T, s store.Recoverable) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var callers []*caller
	handlers := map[string]recovery.Handler{}
	var wg sync.WaitGroup
	var deaths atomic.Int32
	slots := make(chan struct{}, 4) // more overload DynamoDB Local
	for _, fault := range []fakeprovider.Fault{fakeprovider.None, fakeprovider.LostRequest, fakeprovider.LostAnswer} {
		for point := 1; point <= 18; point++ {
			c := &caller{newWorld(), request()}
			c.request.Key.Operation = fmt.Sprintf("pay-%d-%d", fault, point)
			c.bank.Forgetful, c.mail.Forgetful = true, true
			c.bank.Next(fault)
			callers = append(callers, c)
			handlers[c.request.Key.Operation] = recovery.Handler{Rerun: true, Probe: c.probe, Resume: c.pay}
			p := &process{Recoverable: s, crashAt: point}
			c.setProcess(p)
			g, err := guard.New(p, guard.Config{Lease: 3 * time.Second, RecordTimeout: time.Second, RecoverAfter: -1})
			if err != nil {
				t.Fatal(err)
			}
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if p.run(func() { _, _ = g.Run(ctx, c.request, c.pay) }) {
					deaths.Add(1)
				}
				c.setProcess(&process{})
			})
		}
	}
	wg.Wait()
	if deaths.Load() < 10 {
		t.Errorf("only %d processes crashed", deaths.Load())
	}
	worker, err := recovery.New(s, handlers, recovery.Config{
		Grace: -1, Backoff: time.Millisecond,
		MaxBackoff: time.Millisecond, MaxAttempts: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	g, err := guard.New(s, guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "each caller has its answer", func() (bool, error) {
		_, _ = worker.Once(ctx) // errors of a busy store are retried
		callers = slices.DeleteFunc(callers, func(c *caller) bool { return c.answered(ctx, t, g) })
		return len(callers) == 0, ctx.Err()
	})
}

// answered retries the request, and checks the effects when it gets an answer.
func (c *caller) answered(ctx context.Context, t *testing.T, g *guard.Guard) bool {
	res, err := g.Run(ctx, c.request, c.pay)
	if err != nil {
		return false
	}
	if len(c.bank.Effects()) != 1 || len(c.mail.Effects()) != 1 || len(c.payments) != 1 || res.Code != 201 {
		t.Errorf("%s: %d charges, %d mails, %d payments, %+v", c.request.Key.Operation, len(c.bank.Effects()),
			len(c.mail.Effects()), len(c.payments), res)
	}
	return true
}
