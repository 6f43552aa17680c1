package pgtls_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgtls"
)

func TestPlainText(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u@h:1/d":                                   "h", // prefer is the default
		"postgres://u@h:1/d?sslmode=disable":                   "h",
		"postgres://u@h:1/d?sslmode=allow":                     "h",
		"postgres://u@h:1/d?sslmode=require":                   "",
		"postgres://u@h:1/d?sslmode=verify-full":               "",
		"postgres://u@localhost:1/d":                           "",
		"postgres://u@127.0.0.1:1/d":                           "",
		"host=/run/postgresql user=u":                          "",
		"postgres://u@localhost:1,other:1/d?sslmode=disable":   "other",
		"postgres://u@localhost:1,other:1/d?sslmode=require":   "",
		"postgres://u@[::1]:1/d?sslmode=disable":               "",
		"postgres://u@10.0.0.1:1/d?sslmode=prefer&user=canary": "10.0.0.1",
	} {
		cfg, err := pgxpool.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		if got := pgtls.PlainText(cfg.ConnConfig); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}
