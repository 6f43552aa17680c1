package soak

import (
	"os"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/verify/roles"
)

func TestMain(m *testing.M) {
	roles.Main()
	code := m.Run()
	kafkatest.Stop()
	pgtest.Stop()
	// No check for goroutines: toxiproxy leaks those of links that it cut. The processes check their own.
	os.Exit(code)
}
