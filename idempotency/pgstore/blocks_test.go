package pgstore_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/internal/pgtest"
)

// TestBlocks_NobodyGetsANumberTwice: many callers in several processes, with sizes of their own.
func TestBlocks_NobodyGetsANumberTwice(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "idempotency")
	const each = 200
	var mu sync.Mutex
	var all []int64
	var wg sync.WaitGroup
	for _, size := range []int{1, 7, 50, 1000} {
		b, err := pgstore.NewBlocks(db.Pool, "", "invoice", size)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			wg.Go(func() {
				for range each {
					n, err := b.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					all = append(all, n)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	slices.Sort(all)
	if len(all) != 12*each || len(slices.Compact(all)) != 12*each || all[0] != 1 {
		t.Errorf("%d numbers from %d on, some twice", len(all), all[0])
	}
	other, err := pgstore.NewBlocks(db.Pool, db.Schema, "refund", 10)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := other.Next(t.Context()); n != 1 || err != nil {
		t.Errorf("another name begins at %d, %v", n, err)
	}
}

// TestBlocks_ALostReplyIsAGap: the block is gone, and its numbers are given to nobody.
func TestBlocks_ALostReplyIsAGap(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "idempotency")
	proxy := pgtest.NewProxy(t, db.URL)
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	b, err := pgstore.NewBlocks(pool, "", "invoice", 10)
	if err != nil {
		t.Fatal(err)
	}
	next := func(want int64) {
		t.Helper()
		if n, err := b.Next(t.Context()); n != want || err != nil {
			t.Errorf("got %d, %v, want %d", n, err, want)
		}
	}
	for want := range int64(10) {
		next(1 + want)
	}
	proxy.On(func(sql string) bool { return strings.Contains(sql, "block of numbers") }, 0, pgtest.DropReply)
	if n, err := b.Next(t.Context()); err == nil {
		t.Errorf("got %d without a reply", n)
	}
	next(21)
	next(22)
}

func TestNewBlocks_Refuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, make := range map[string]func() (*pgstore.Blocks, error){
		"no pool":  func() (*pgstore.Blocks, error) { return pgstore.NewBlocks(nil, "", "a", 1) },
		"no name":  func() (*pgstore.Blocks, error) { return pgstore.NewBlocks(db.Pool, "", "", 1) },
		"no size":  func() (*pgstore.Blocks, error) { return pgstore.NewBlocks(db.Pool, "", "a", 0) },
		"a schema": func() (*pgstore.Blocks, error) { return pgstore.NewBlocks(db.Pool, "A", "a", 1) },
	} {
		if _, err := make(); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
