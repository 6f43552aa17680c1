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

	"github.com/effectonce/effectonce/internal/pgerr"
)

// presentEvery is how often a program notes that it runs the consumer, and reads which others do. One whose note is
// three times as old does not run it any more.
const presentEvery = time.Minute

// majorVersion is an element of a package's path that another release of the same program may have.
var majorVersion = regexp.MustCompile(`/v[0-9]+(/|$)`)

// programName is Config.Program's default: the path of the main package, which versions and builds share.
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

// programs are the others that run the same consumer.
type programs struct {
	sync.Mutex
	host  string
	group string               // the Kafka group of this process; empty: not known
	seen  map[string]time.Time // when each has last said so; nil: nobody has looked yet
	said  map[string]bool
}

// present notes that this program runs the consumer, and warns of another one that does. One that was last noted before
// the first look was replaced by this one.
func (in *Inbox) present(ctx context.Context) error {
	if in.state.Load() == nil {
		return nil // it does not run it yet
	}
	in.programs.Lock()
	defer in.programs.Unlock()
	p := &in.programs
	seen := map[string]time.Time{}
	rows, err := in.db.Query(ctx, in.q(sqlPresent), in.consumer, in.cfg.Program, p.host, p.group)
	if err == nil {
		var name, host string
		var at time.Time
		_, err = pgx.ForEachRow(rows, []any{&name, &host, &at}, func() error {
			seen[name] = at
			if p.seen != nil && at.After(p.seen[name]) && !p.said[name] {
				p.said[name] = true
				in.log.Warn("inbox: another program runs this consumer: each takes events that the other never sees; "+
					"give one of them "+
					"another consumer name, or both the same Config.Program when they are one",
					"program", in.cfg.Program, "other", name, "other_host", host)
			}
			return nil
		})
	}
	switch {
	case pgerr.Away(err): // the next look is soon enough, and others say so
		return nil
	case err != nil:
		return fmt.Errorf("inbox: saying which program runs the consumer: %w", err)
	}
	p.seen = seen
	return nil
}
