package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestMain does not check for leaked goroutines: sarama leaks some.
func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	kafkatest.Stop()
	os.Exit(code)
}

// TestExample runs the program until the order is counted and its receipt is in Kafka. A second run does not count the
// first order again.
func TestExample(t *testing.T) {
	db := pgtest.New(t)
	for _, topic := range []string{"shop.orders", "shop.receipts"} {
		kafkatest.CreateTopic(t, kafkatest.Brokers(t), topic, 4)
	}
	for n := 1; n <= 2; n++ {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- run(ctx, db.URL, kafkatest.Brokers(t)) }()
		pgtest.AwaitSQL(t, db, `select to_regclass('revenue') is not null`)
		pgtest.AwaitSQL(t, db, `select total = 1999 * $1 from revenue union all select false limit 1`, n)
		pgtest.AwaitSQL(t, db, `select not exists (select from outbox_event)`)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := len(kafkatest.ReadAll(t, "shop.receipts")); got != n {
			t.Errorf("%d receipts, want %d", got, n)
		}
	}
}

// TestDocsShowThisCode checks that docs/watermill.md shows this program.
func TestDocsShowThisCode(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, part := range []string{"producer", "router"} {
		_, code, _ := strings.Cut(read("main.go"), "// "+part+":begin\n")
		code, _, _ = strings.Cut(code, "// "+part+":end\n")
		if code = strings.TrimSpace(code); code == "" || !strings.Contains(read("../../docs/watermill.md"),
			"```go\n"+code+"\n```") {
			t.Errorf("docs/watermill.md differs from main.go: copy the code between %s:begin and %s:end", part, part)
		}
	}
}
