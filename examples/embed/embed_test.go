package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

// TestEmbed runs the program until the amount of its order is in the table revenue.
func TestEmbed(t *testing.T) {
	db := pgtest.New(t)
	kafkatest.CreateTopic(t, kafkatest.Brokers(t), "orders", 4)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, db.URL, kafkatest.Brokers(t)) }()
	pgtest.AwaitSQL(t, db, `select to_regclass('revenue') is not null`)
	pgtest.AwaitSQL(t, db, `select total = 1999 from revenue union all select false limit 1`)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestReadmeShowsThisCode checks that section "Embed it" of the README shows this program.
func TestReadmeShowsThisCode(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	_, code, _ := strings.Cut(read("main.go"), "// readme:begin\n")
	code, _, _ = strings.Cut(code, "// readme:end\n")
	if code = strings.TrimSpace(code); code == "" {
		t.Fatal("main.go has no code between readme:begin and readme:end")
	}
	if !strings.Contains(read("../../README.md"), "```go\n"+code+"\n```") {
		t.Error("the README differs from examples/embed/main.go: copy the code between readme:begin and readme:end")
	}
}
