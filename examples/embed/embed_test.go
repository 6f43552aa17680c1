package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/process"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

// TestEmbed runs the program until the amount of its order is in the table revenue.
func TestEmbed(t *testing.T) {
	db := pgtest.New(t)
	kafkatest.CreateTopic(t, kafkatest.Brokers(t), "orders", 4)
	kafkatest.CreateTopic(t, kafkatest.Brokers(t), "receipts", 4)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, db.Pool, process.Kafka{Brokers: kafkatest.Brokers(t)}, nil) }()
	pgtest.AwaitSQL(t, db, `select to_regclass('revenue') is not null`)
	pgtest.AwaitSQL(t, db, `select total = 1999 from revenue union all select false limit 1`)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestDocsShowThisCode checks that docs/embedding.md shows the whole program, and that the README's Go is in it.
func TestDocsShowThisCode(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	_, code, _ := strings.Cut(read("main.go"), "// docs:begin\n")
	code, _, _ = strings.Cut(code, "// docs:end\n")
	if code = strings.TrimSpace(code); code == "" {
		t.Fatal("main.go has no code between docs:begin and docs:end")
	}
	if !strings.Contains(read("../../docs/embedding.md"), "```go\n"+code+"\n```") {
		t.Error("docs/embedding.md differs from examples/embed/main.go: copy the code between docs:begin and docs:end")
	}
	blocks := strings.Split(read("../../README.md"), "```go\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "\n```")
		if !strings.Contains(code, block) {
			t.Errorf("the README shows code that examples/embed/main.go has not:\n%s", block)
		}
	}
	if len(blocks) == 0 {
		t.Error("the README shows no Go")
	}
}
