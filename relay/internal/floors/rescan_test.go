package floors

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// TestSliceSize: a slice that is read fast is followed by a larger one; one that took too long, by half of it, again.
func TestSliceSize(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := SliceSize(firstSlice)
		if again, err := n.fit(time.Now(), nil, true); again || err != nil || n != 2*firstSlice {
			t.Errorf("after a fast slice the next one has %d ids: %v, %v", n, again, err)
		}
		if _, _ = n.fit(time.Now(), nil, false); n != 2*firstSlice {
			t.Errorf("after a part of a slice the next one has %d ids", n)
		}
		began := time.Now()
		<-time.After(2 * sliceTime)
		late := &pgconn.PgError{Code: pgerr.QueryCanceled}
		if again, err := n.fit(began, late, true); !again || err != nil || n != firstSlice {
			t.Errorf("after a slice that was cancelled the next one has %d ids: %v, %v", n, again, err)
		}
		n = 1
		if again, err := n.fit(began, late, true); again || !errors.Is(err, late) || n != 1 {
			t.Errorf("one id that cannot be read in time is no failure: %d ids, %v, %v", n, again, err)
		}
	})
}
