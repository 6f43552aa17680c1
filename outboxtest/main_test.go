package outboxtest_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// recorder is a testing.TB that records Fatal.
type recorder struct {
	testing.TB
	fatal string
}

type ended struct{}

func (r *recorder) Helper() {}

func (r *recorder) Fatal(args ...any) {
	r.fatal = fmt.Sprint(args...)
	panic(ended{})
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	panic(ended{})
}

// fatalText returns the text with which do ended its test, or "".
func fatalText(t *testing.T, do func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil {
				if _, ok := p.(ended); !ok {
					panic(p)
				}
			}
		}()
		do(r)
	}()
	return r.fatal
}

func ids(events []event.Event) []uuid.UUID {
	list := make([]uuid.UUID, len(events))
	for i, e := range events {
		list[i] = e.ID
	}
	return list
}

func newEvents(topic string, n int) []event.Event {
	events := make([]event.Event, n)
	for i := range events {
		events[i] = event.Event{ID: event.NewID(), Topic: topic, Key: "k", Type: "T", Payload: []byte{byte(i)}}
	}
	return events
}
