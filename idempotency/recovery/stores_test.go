package recovery_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/dynamostore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/redisstore"
	"github.com/effectonce/effectonce/internal/dynamotest"
	"github.com/effectonce/effectonce/internal/fakeprovider"
	"github.com/effectonce/effectonce/internal/redistest"
)

// TestRecovery_OverRedis: a process that pays dies before and after each write and each call, the provider's answers are lost, and it
// takes two calls for two. Recovery asks it, and there is one charge and one mail, as over Postgres.
func TestRecovery_OverRedis(t *testing.T) {
	t.Parallel()
	s, err := redisstore.New(redistest.Client(t), redisstore.Config{Prefix: redistest.Prefix()})
	if err != nil {
		t.Fatal(err)
	}
	crashOver(t, s)
}

// TestRecovery_OverDynamoDB: likewise.
func TestRecovery_OverDynamoDB(t *testing.T) {
	t.Parallel()
	client, table := dynamotest.Connect(t, dynamotest.URL(t), nil), "test-"+rand.Text()
	if err := dynamostore.CreateTable(t.Context(), client, table); err != nil {
		t.Fatal(err)
	}
	s, err := dynamostore.New(client, table, dynamostore.Config{Skew: -1})
	if err != nil {
		t.Fatal(err)
	}
	crashOver(t, s)
}

func crashOver(t *testing.T, s recovery.Store) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	deaths := 0
	for _, fault := range []fakeprovider.Fault{fakeprovider.None, fakeprovider.LostRequest, fakeprovider.LostAnswer} {
		for point := 1; point <= 20; point++ {
			wg.Go(func() {
				died, err := payAndDie(ctx, s, fault, point)
				if err != nil {
					t.Errorf("fault %d, point %d: %v", fault, point, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if died {
					deaths++
				}
			})
		}
	}
	wg.Wait()
	if deaths < 20 {
		t.Errorf("only %d processes died", deaths)
	}
}

// payAndDie pays, dies at a point, recovers, and comes again as the caller would. The operation is its own, so many share the store.
func payAndDie(ctx context.Context, s recovery.Store, fault fakeprovider.Fault, point int) (died bool, err error) {
	w, r := newWorld(), request()
	r.Key.Operation = fmt.Sprintf("pay-%d-%d", fault, point)
	w.bank.Forgetful, w.mail.Forgetful = true, true
	w.bank.Next(fault)
	p := &process{Store: s, at: point}
	w.as(p)
	crashing, err := idempotency.New(p, idempotency.Config{Lease: 2 * time.Second, RecordFor: time.Second, RecoverAfter: -1})
	if err != nil {
		return false, err
	}
	died = p.live(func() { _, _ = crashing.Run(ctx, r, w.pay) })
	w.as(&process{})
	worker, err := recovery.New(s, map[string]recovery.Handler{r.Key.Operation: {Probe: w.probe, Resume: w.pay}},
		recovery.Config{Grace: -1, Backoff: time.Millisecond, MaxBackoff: time.Millisecond, OthersElsewhere: true})
	if err != nil {
		return died, err
	}
	g, err := idempotency.New(s, idempotency.Config{})
	if err != nil {
		return died, err
	}
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	var res idempotency.Result
	for {
		if _, err := worker.Once(ctx); err != nil {
			return died, err
		}
		res, err = g.Run(ctx, r, w.pay)
		if err == nil {
			break
		}
		if !errors.Is(err, idempotency.ErrUnknown) && !errors.Is(err, idempotency.ErrInProgress) {
			return died, err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return died, err
		}
	}
	if len(w.bank.Effects()) != 1 || len(w.mail.Effects()) != 1 || len(w.payments) != 1 || res.Code != 201 {
		return died, fmt.Errorf("%d charges, %d mails, %d payments, %+v", len(w.bank.Effects()), len(w.mail.Effects()), len(w.payments), res)
	}
	return died, nil
}
