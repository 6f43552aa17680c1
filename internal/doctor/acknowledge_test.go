package doctor

import (
	"testing"

	"github.com/effectonce/effectonce/admin"
)

// TestMark: a warning is acknowledged by its check and words, whatever its figures. A failure never is.
func TestMark(t *testing.T) {
	t.Parallel()
	list := []Finding{
		{Check: "parked", Severity: Warn, Found: "12 events, of 3 keys or alone"},
		{Check: "parked", Severity: Warn, Found: "the list is full"},
		{Check: "held", Severity: Warn, Found: "12 events, of 3 keys or alone"},
		{Check: "parked", Severity: Fail, Found: "12 events, of 3 keys or alone"},
		{Check: "parked", Severity: OK, Found: "12 events, of 3 keys or alone"},
	}
	Mark(list, []admin.Acknowledgement{{Check: "parked", Found: "7 events, of 7 keys or alone"}})
	for i, f := range list {
		if (f.Acknowledged != nil) != (i == 0) {
			t.Errorf("%+v: acknowledged %v", f, f.Acknowledged)
		}
	}
}
