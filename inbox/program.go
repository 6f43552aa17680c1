package inbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/build"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// presentEvery is how often a program records that it runs the consumer, and reads which other programs do. A record
// that is three minutes old no longer counts.
const presentEvery = 20 * time.Second

// majorVersion matches the path element that differs between major versions of a program.
var majorVersion = regexp.MustCompile(`/v[0-9]+(/|$)`)

// programName returns the default of Config.Program: the path of the main package, which versions and builds share.
func programName(build *debug.BuildInfo, executable string) string {
	if build == nil || build.Path == "" || build.Path == "command-line-arguments" { // go run main.go
		return strings.TrimSuffix(filepath.Base(executable), ".exe")
	}
	return majorVersion.ReplaceAllString(build.Path, "$1")
}

func thisProgram() string {
	build, _ := debug.ReadBuildInfo()
	executable := ""
	if len(os.Args) > 0 {
		executable = os.Args[0]
	}
	return programName(build, executable)
}

// programs holds the other programs that run the same consumer.
type programs struct {
	sync.Mutex
	host  string
	self  string               // this process's number, and a name of this Inbox
	group string               // the Kafka group of this process; empty: unknown
	seen  map[string]time.Time // when each last reported; nil: not read yet
	said  map[string]bool
}

// present records that this program runs the consumer, and warns of another program that does. A program that last
// reported before the first call was replaced by this one. A consumer that runs is not retired.
func (in *Inbox) present(ctx context.Context) error {
	if in.state.Load() == nil {
		return nil // this program does not run the consumer yet
	}
	in.programs.Lock()
	defer in.programs.Unlock()
	p := &in.programs
	if tag, err := in.db.Exec(ctx, in.q(sqlReturn), in.consumer); err == nil && tag.RowsAffected() > 0 {
		in.log.Warn("inbox: the consumer was retired, and runs: it is not retired any more; ids of days that were " +
			"dropped meanwhile are quarantined when they come again")
	}
	seen := map[string]time.Time{}
	rows, err := in.db.Query(ctx, in.q(sqlPresent), in.consumer, in.cfg.Program, p.host, p.group,
		build.Version(), p.self)
	if err == nil {
		var name, host string
		var at time.Time
		_, err = pgx.ForEachRow(rows, []any{&name, &host, &at}, func() error {
			seen[name] = at
			if p.seen != nil && at.After(p.seen[name]) && !p.said[name] {
				p.said[name] = true
				if name == in.cfg.Program {
					in.log.Warn("inbox: another Inbox of this process has this consumer's name: if both read a " +
						"topic, each takes events that the other never sees; use one Inbox, or give one of them " +
						"another name")
					return nil
				}
				in.log.Warn("inbox: another program runs this consumer: each takes events that the other never sees; "+
					"give one of them "+
					"another consumer name, or both the same Config.Program when they are one",
					"program", in.cfg.Program, "other", name, "other_host", host)
			}
			return nil
		})
	}
	switch {
	case pgerr.Away(err) && !pgerr.Answered(err): // the next call is soon enough, and other code logs the outage
		return nil
	case err != nil:
		return fmt.Errorf("inbox: saying which program runs the consumer: %w", err)
	}
	p.seen = seen
	return nil
}
