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

// TestEmbed runs the README's program until the order it places has become revenue.
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

// TestReadmeShowsThisCode: the README's "embed it" is this program, so it compiles and runs.
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
		t.Error("the README's \"embed it\" differs from examples/embed/main.go: copy what stands between its " +
			"readme marks")
	}
}
