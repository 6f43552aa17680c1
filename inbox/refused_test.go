package inbox_test

import (
	"testing"

	"github.com/effectonce/effectonce/inbox"
)

// TestIdentifierIsRefusedForAMoment: inbox_server cannot read the server's identifier when the inbox first asks for it.
// That answer, which stands for another server, is not held against partitions that begin later.
func TestIdentifierIsRefusedForAMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.inbox(inbox.Config{}).Each(write)
	w.Exec(t, "alter function inbox_server() rename to real_server")
	w.Exec(t, "create function inbox_server(out system bigint, out timeline text) language sql as "+
		"$$ select 0::bigint, 'started-1' $$")
	events, later := some(5), some(5)
	same(t, "while it is refused", handle(t, h, events), repeat(inbox.Applied, 5))
	w.Exec(t, "drop function inbox_server()")
	w.Exec(t, "alter function real_server() rename to inbox_server")
	for i := range later {
		later[i].Position.Partition = 4
	}
	same(t, "of another partition", handle(t, h, later), repeat(inbox.Applied, 5))
	same(t, "effects", w.effects(), ids(append(events, later...)))
}
