package publisher

import (
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }
