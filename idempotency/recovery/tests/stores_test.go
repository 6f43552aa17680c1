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
	crashOver(t, redisStore(redisClient(t), redistest.Prefix()))
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
	crashOver(t, dynamoStore(client, table))
}

// dynamoStore is a store whose clock is as narrow as one server's can be.
func dynamoStore(client *dynamodb.Client, table string) store.Recoverable {
	s, err := dynamostore.New(client, table, dynamostore.Config{Skew: -1})
	if err != nil {
		panic(err)
	}
	return s
}

// caller is one whose process dies.
type caller struct {
	*world
	request idempotency.Request
}

// crashOver lets callers' processes die, each at its point, and recovers until each caller has its answer.
func crashOver(t *testing.T, s store.Recoverable) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var callers []*caller
	handlers := map[string]recovery.Handler{}
	var wg sync.WaitGroup
	var deaths atomic.Int32
	slots := make(chan struct{}, 4) // DynamoDB Local is not made for crowds
	for _, fault := range []fakeprovider.Fault{fakeprovider.None, fakeprovider.LostRequest, fakeprovider.LostAnswer} {
		for point := 1; point <= 18; point++ {
			c := &caller{newWorld(), request()}
			c.request.Key.Operation = fmt.Sprintf("pay-%d-%d", fault, point)
			c.bank.Forgetful, c.mail.Forgetful = true, true
			c.bank.Next(fault)
			callers = append(callers, c)
			handlers[c.request.Key.Operation] = recovery.Handler{Probe: c.probe, Resume: c.pay}
			p := &process{Recoverable: s, at: point}
			c.as(p)
			g, err := guard.New(p, guard.Config{Lease: 3 * time.Second, RecordTimeout: time.Second, RecoverAfter: -1})
			if err != nil {
				t.Fatal(err)
			}
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if p.live(func() { _, _ = g.Run(ctx, c.request, c.pay) }) {
					deaths.Add(1)
				}
				c.as(&process{})
			})
		}
	}
	wg.Wait()
	if deaths.Load() < 10 {
		t.Errorf("only %d processes died", deaths.Load())
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
		_, _ = worker.Once(ctx) // what a busy store does not answer is asked again
		callers = slices.DeleteFunc(callers, func(c *caller) bool { return c.answered(ctx, t, g) })
		return len(callers) == 0, ctx.Err()
	})
}

// answered comes again, as the caller would, and looks what happened when there is an answer.
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
