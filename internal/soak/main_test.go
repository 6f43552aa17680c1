package soak

import (
	"os"
	"testing"

	"github.com/effectonce/effectonce/internal/kafkatest"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/internal/players"
)

func TestMain(m *testing.M) {
	players.Main()
	code := m.Run()
	kafkatest.Stop()
	pgtest.Stop()
	// No look for goroutines here: toxiproxy leaves those of links that it cut. The players look for their own.
	os.Exit(code)
}
