package publisher

import (
	"testing"

	"github.com/effectonce/effectonce/internal/kafkatest"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }
