package operator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Diagnosis has facts about an outbox, as `relay doctor` reads them. It does not judge them.
type Diagnosis struct {
	// MissingRights are those that a relay needs and the connection's role lacks, as "table outbox_lane: update". If
	// there are any, no other field is set.
	MissingRights []string
	Sequence      SequenceDiagnosis
	// ChangedHashes are test vectors with another hash on this server. The hash decides a key's lane.
	ChangedHashes []string
	// Misplaced counts events, of the first hundred of each lane, that are not in their key's lane.
	Misplaced int64
	// SameSystem is false when the numbering belongs to another system or timeline: a relay begins a new incarnation at
	// its next claim.
	SameSystem bool
	// ByStart: the server hides its system identifier and timeline from relays, so it is identified by the time of its
	// start. Each restart begins a new incarnation.
	ByStart bool

	// Divided is a table that has partitions or child tables, and must have none: relays do not work then.
	Divided                 string
	MissingLanes            int64         // rows that outbox_lane lacks: their events are not published
	Unnumbered              bool          // outbox_meta lacks its row, and the rest was not asked: no relay works
	FreeLanes, OverdueLanes int64         // lanes without an owner, and with one whose lease has run out
	Members                 int64         // relays that were heard of within 30 s, or whose lease runs
	Silent                  []SilentRelay // the first five, the last heard of first
	// Sessions are those of relays in this database, by role. They are looked for if no relay was alive, or if lanes
	// are overdue; Unseen is why they are not known then, and Shared tells that they may be another schema's.
	Sessions []RelaySessions
	Unseen   string
	Shared   bool

	Versions     []string      // of the programs of live relays, each with their names
	Troubled     []string      // the first five live relays that have met an error for ten seconds, with it
	Holding      []string      // the first five live relays that hold events, with places and errors
	WaitingLanes int64         // lanes that have events
	Publishes    bool          // Kafka has acked an event of a live relay within the last 30 s
	Oldest       time.Duration // age of the oldest event; 0 when there is none

	Parked, ParkedKeys int64
	// Undue counts scheduled events that have been due for more than a minute and were not moved.
	Undue int64
	// Topics are those that the outbox has published to, has paused, or holds events of. Waiting are those of the first
	// hundred events of each lane. Cluster is the id of the Kafka cluster that the topics are in; "" when none is
	// pinned.
	Topics  []Topic
	Waiting []string
	Cluster string
	// Unacked are pinned topics for which an event waits, or is parked, that is older than the pin: perhaps nothing was
	// acked there.
	Unacked []string
	Vacuum  VacuumDiagnosis
}

// SilentRelay is a relay without a heartbeat for 30 s, whose lease has expired: it was killed or hangs, because it
// has not left.
type SilentRelay struct {
	Name string
	Ago  time.Duration // since its last heartbeat
}

// RelaySessions are the sessions that relays have as one role.
type RelaySessions struct {
	Role    string
	Count   int64
	Missing []string // rights that a relay needs and the role lacks, as in Diagnosis.MissingRights
}

// SequenceDiagnosis is the sequence behind outbox_event.id.
type SequenceDiagnosis struct {
	// Other is the sequence that ids come from if it is not outbox_event_id_seq, which the other fields are about.
	// Relays do not start then.
	Other            string
	Cache, Increment int64
	Cycle            bool
	Last             int64 // the last drawn id
	Highest          int64 // the highest id in a table; more than Last after a restore without sequences
}

// VacuumDiagnosis has Postgres' statistics of outbox_event.
type VacuumDiagnosis struct {
	Live, Dead int64
	Ago        *time.Duration // since the last vacuum; nil: none is known
	Off        bool           // autovacuum is switched off for the table
}

// reading are the rights that change nothing.
var reading = []string{"select", "execute"}

// rights returns the rights that a relay needs, by kind and name, or only those in reading.
func rights(readsOnly bool) (kinds, names, wants []string) {
	add := func(kind, name string, want ...string) {
		for _, w := range want {
			if !readsOnly || slices.Contains(reading, w) {
				kinds, names, wants = append(kinds, kind), append(names, name), append(wants, w)
			}
		}
	}
	add("table", "outbox_event", "select", "insert", "delete")
	add("table", "outbox_scheduled", "select", "delete")
	add("table", "outbox_lane", "select", "update")
	add("table", "outbox_meta", "select", "update")
	add("table", "outbox_claim", "select", "insert", "delete")
	add("table", "outbox_topic", "select", "insert")
	add("table", "outbox_archive", "select", "insert")
	add("table", "outbox_paused_topic", "select")
	add("table", "outbox_wal", "select", "insert", "update")
	add("table", "outbox_streamed", "select", "insert", "update", "delete")
	for _, table := range []string{"relay_member", "outbox_held", "outbox_parked_key", "outbox_parked"} {
		add("table", table, "select", "insert", "update", "delete")
	}
	add("sequence", "outbox_event_id_seq", "select")
	add("sequence", "outbox_archive_pos_seq", "usage")
	add("function", "outbox_server()", "execute")
	return kinds, names, wants
}

// Diagnose examines an outbox. It changes nothing, and reads no more than a few thousand rows. An empty schema is the
// connection's search_path. With readsOnly the role only reads, and the rights of a relay to change something are not
// required.
func Diagnose(ctx context.Context, db *pgxpool.Pool, schema string, readsOnly bool) (Diagnosis, error) {
	in, err := sql.For(schema)
	if err != nil {
		return Diagnosis{}, fmt.Errorf("relay: %w", err)
	}
	x := &examiner{db: db, schema: in}
	d, err := x.examine(ctx, sql.Vectors(), readsOnly)
	if err != nil {
		return Diagnosis{}, fmt.Errorf("relay: diagnose: %w", err)
	}
	return d, nil
}

// examiner asks one question after another until one fails.
type examiner struct {
	db     *pgxpool.Pool
	schema *sql.Schema
	err    error
}

func (x *examiner) row(ctx context.Context, statement string, args, into []any) {
	if x.err == nil {
		x.err = x.db.QueryRow(ctx, x.schema.Expand(statement), args...).Scan(into...)
	}
}

func (x *examiner) texts(ctx context.Context, statement string, args ...any) []string {
	return rowsOf(ctx, x, pgx.RowTo[string], statement, args...)
}

func rowsOf[T any](ctx context.Context, x *examiner, scan pgx.RowToFunc[T], statement string, args ...any) (list []T) {
	if x.err == nil {
		list, x.err = audit.Read(ctx, x.db, scan, x.schema.Expand(statement), args...)
	}
	return list
}

func scanSilent(row pgx.CollectableRow) (s SilentRelay, err error) {
	var ago float64
	err = row.Scan(&s.Name, &ago)
	s.Ago = sql.Seconds(ago)
	return s, err
}

// sessions looks for sessions of relays, which may lack a right to write their heartbeats.
func (x *examiner) sessions(ctx context.Context, d *Diagnosis) {
	kinds, names, wants := rights(false)
	d.Sessions = rowsOf(ctx, x, func(row pgx.CollectableRow) (s RelaySessions, err error) {
		err = row.Scan(&s.Role, &s.Count, &s.Missing, &d.Shared)
		return s, err
	}, sql.RelaySessions, kinds, names, wants)
	if d.Unseen = pgerr.Denied(x.err); d.Unseen != "" {
		x.err = nil
	}
}

func (x *examiner) examine(ctx context.Context, vectors map[string]int64, readsOnly bool) (d Diagnosis, err error) {
	kinds, names, wants := rights(readsOnly)
	if d.MissingRights = x.texts(ctx, sql.MissingRights, kinds, names, wants); x.err != nil ||
		len(d.MissingRights) > 0 {
		return d, x.err
	}
	x.row(ctx, sql.Sequence, nil, []any{
		&d.Sequence.Cache, &d.Sequence.Increment, &d.Sequence.Cycle, &d.Sequence.Last,
		&d.Sequence.Highest,
	})
	x.row(ctx, sql.OtherSequence, nil, []any{&d.Sequence.Other})
	var texts []string
	var hashes []int64
	for text, hash := range vectors {
		texts, hashes = append(texts, text), append(hashes, hash)
	}
	d.ChangedHashes = x.texts(ctx, sql.HashVectors, texts, hashes)
	x.row(ctx, sql.Misplaced, nil, []any{&d.Misplaced})
	var epoch string
	x.row(ctx, sql.Unfit, nil, []any{&d.MissingLanes, &d.Unnumbered, &d.Divided})
	if d.Unnumbered {
		return d, x.err
	}
	x.row(ctx, sql.Meta, nil, []any{&epoch, &d.SameSystem})
	x.row(ctx, sql.ByStart, nil, []any{&d.ByStart})
	var oldest float64
	x.row(ctx, sql.Leases, nil, []any{
		&d.FreeLanes, &d.OverdueLanes, &d.Members, &d.WaitingLanes, &oldest,
		&d.Publishes,
	})
	d.Oldest = sql.Seconds(oldest)
	d.Silent = rowsOf(ctx, x, scanSilent, sql.Silent)
	if x.err == nil && (d.Members == 0 || d.OverdueLanes > 0) {
		x.sessions(ctx, &d)
	}
	d.Versions = x.texts(ctx, sql.Versions)
	d.Troubled = x.texts(ctx, sql.Troubled)
	d.Holding = x.texts(ctx, sql.Holding)
	x.row(ctx, sql.Aside, nil, []any{&d.Parked, &d.ParkedKeys, &d.Undue})
	var ago *float64
	x.row(ctx, sql.Vacuum, nil, []any{&d.Vacuum.Live, &d.Vacuum.Dead, &ago, &d.Vacuum.Off})
	if ago != nil {
		since := sql.Seconds(*ago)
		d.Vacuum.Ago = &since
	}
	x.row(ctx, sql.Cluster, nil, []any{&d.Cluster})
	d.Waiting = x.texts(ctx, sql.WaitingTopics)
	d.Unacked = x.texts(ctx, sql.Unacked)
	d.Topics = rowsOf(ctx, x, pgx.RowToStructByPos[Topic], sql.ListTopics)
	return d, x.err
}
