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
	var losses []Finding // at another time, as `inbox: list the progress` writes it
	for _, one := range []string{
		"20261130T023814Z: gone (2, from offset 3 on)", "20261130T033914Z: gone (7, from offset 9 on)",
	} {
		losses = append(losses, Finding{Check: "c", Severity: Warn, Found: "records are lost: t/0 at " + one})
	}
	Mark(losses, []admin.Acknowledgement{{Check: "c", Found: losses[0].Found}})
	if losses[0].Acknowledged == nil || losses[1].Acknowledged != nil {
		t.Errorf("of two losses, one of which is acknowledged: %v", losses)
	}
	const seen = "orders-1, t/0: 3 events, 5 %; 1 session (10.0.0.1) since 38s"
	for found, known := range map[string]bool{
		seen: true, "orders-1, t/0: 7 events, 50 %; 2 session (10.0.0.1) since 1h2m3s": true,
		"orders-1, t/0: 3 events, 5 %; 1 session (10.0.0.1) since 1.5ms":  true,
		"orders-2, t/0: 3 events, 5 %; 1 session (10.0.0.1) since 38s":    false,
		"orders-1, t/1: 3 events, 5 %; 1 session (10.0.0.1) since 38s":    false,
		"orders-1, t/0: 3 events, 5 %; 1 session (10.0.0.2) since 38s":    false,
		"orders-1, t/0: 3 events, 5 %; 1 session (10.0.0.1) since 38s, 1": false,
	} {
		list := []Finding{{Check: "paused", Severity: Warn, Found: found}}
		Mark(list, []admin.Acknowledgement{{Check: "paused", Found: seen}})
		if (list[0].Acknowledged != nil) != known {
			t.Errorf("%s is acknowledged: %v", found, !known)
		}
	}
}
