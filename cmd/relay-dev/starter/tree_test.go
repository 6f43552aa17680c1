package main

import (
	"os"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestMain gives the tests this repository's Postgres. This file is not copied.
func TestMain(m *testing.M) {
	env, err := pgtest.Environ()
	if err == nil {
		_, url, _ := strings.Cut(env[0], "=")
		err = os.Setenv("DATABASE_URL", url)
	}
	if err != nil {
		panic(err)
	}
	pgtest.Main(m)
}
