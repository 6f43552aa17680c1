package soak

import (
	"testing"

	"github.com/effectonce/effectonce/internal/kafkatest"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/internal/players"
)

func TestMain(m *testing.M) {
	players.Main()
	pgtest.Main(m, kafkatest.Stop)
}
