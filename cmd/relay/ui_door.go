package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/effectonce/effectonce/internal/loopback"
	"github.com/effectonce/effectonce/ui"
)

// door authenticates by password, or by the name in a proxy's header.
type door struct {
	users  *usersFile // nil: there are no passwords
	header string     // of the proxy; empty: no proxy
	from   []netip.Prefix
	level  ui.Level // of users that only the proxy knows
}

const challenge = ui.Challenge(`Basic realm="effectonce", charset="UTF-8"`)

func (d *door) authorize(r *http.Request) (ui.Identity, error) {
	users := map[string]account{}
	if d.users != nil {
		var err error
		if users, err = d.users.read(); err != nil {
			return ui.Identity{}, errors.New("the file of users cannot be read: see it on the server")
		}
	}
	if d.header != "" && d.trusted(r.RemoteAddr) {
		if len(r.Header.Values(d.header)) > 1 {
			return ui.Identity{}, errors.New("the proxy's header names several users: it must replace what a client " +
				"sends")
		}
		if name := r.Header.Get(d.header); name != "" {
			// A page of another site whose name has this machine's address has a browser here send any header.
			if loopback.From(r) && !loopback.Named(r) {
				return ui.Identity{}, fmt.Errorf("a proxy on this machine must send localhost, or the loopback "+
					"address that it connects to, as Host, and not %q", r.Host)
			}
			if u, ok := users[name]; ok {
				return ui.Identity{Name: name, Level: u.level, Scope: u.scope}, nil
			}
			if other := sameBut(users, name); other != "" {
				return ui.Identity{}, fmt.Errorf("the proxy says %q, and the file of users has %q: write both in the "+
					"same case", name, other)
			}
			return ui.Identity{Name: name, Level: d.level}, nil
		}
	}
	if d.users == nil {
		return ui.Identity{}, errors.New("come by the proxy that logs you in")
	}
	name, password, ok := r.BasicAuth()
	if !ok {
		return ui.Identity{}, challenge
	}
	u, known := users[name]
	right, err := d.users.matches(r.Context(), name, u.hash, password)
	if err != nil {
		return ui.Identity{}, err
	}
	if !right || !known {
		return ui.Identity{}, challenge
	}
	return ui.Identity{Name: name, Level: u.level, Scope: u.scope}, nil
}

// sameBut returns a user whose name differs from another one in its case alone; empty: none. Names are compared
// exactly, and such a user would get the rights of a stranger, which may be more.
func sameBut(users map[string]account, name string) string {
	for other := range users {
		if other != name && strings.EqualFold(other, name) {
			return other
		}
	}
	return ""
}

func (d *door) trusted(remote string) bool {
	at, err := netip.ParseAddrPort(remote)
	return err == nil && slices.ContainsFunc(d.from, func(p netip.Prefix) bool {
		return p.Contains(at.Addr().Unmap().WithZone(""))
	})
}

// account is one line of the file.
type account struct {
	hash  string // empty: only the proxy admits this user
	level ui.Level
	scope *ui.Scope // nil: all
}

// usersFile is read again when it has changed.
type usersFile struct {
	path string

	mu     sync.Mutex
	at     time.Time // modification time of the file that was read
	size   int64
	users  map[string]account
	proven map[[sha256.Size]byte]bool // verified logins: bcrypt is slow
	nobody []byte                     // a hash for unknown names, so that the time of a refusal does not reveal names
	slow   turns
}

// turns gives one comparison of a password after another its turn: guessing uses one core at most. So few wait that a
// first login is held up for a second or two.
type turns struct{ runs, waits chan struct{} }

func newTurns() turns { return turns{make(chan struct{}, 1), make(chan struct{}, 10)} }

var errBusy = errors.New("too many logins at once: try again in a moment")

// enter waits for its turn; leave ends it.
func (t turns) enter(ctx context.Context) (leave func(), err error) {
	select {
	case t.waits <- struct{}{}:
		defer func() { <-t.waits }()
	default:
		return nil, errBusy
	}
	select {
	case t.runs <- struct{}{}:
		return func() { <-t.runs }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *usersFile) read() (map[string]account, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, err
	}
	if f.users != nil && info.ModTime().Equal(f.at) && info.Size() == f.size {
		return f.users, nil
	}
	users, err := readUsers(f.path)
	if err != nil {
		return nil, err
	}
	cost := bcrypt.MinCost
	for _, u := range users {
		if c, err := bcrypt.Cost([]byte(u.hash)); err == nil {
			cost = max(cost, c)
		}
	}
	if c, err := bcrypt.Cost(f.nobody); err != nil || c != cost {
		if f.nobody, err = bcrypt.GenerateFromPassword([]byte(rand.Text()), cost); err != nil {
			return nil, err
		}
	}
	if f.proven == nil { // a proof contains the hash of its line, and ends with it
		f.proven, f.slow = map[[sha256.Size]byte]bool{}, newTurns()
	}
	f.users, f.at, f.size = users, info.ModTime(), info.Size()
	return users, nil
}

// readUsers parses the output of htpasswd -B, followed by a level. Its errors contain no hash.
func readUsers(path string) (map[string]account, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	users := map[string]account{}
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, ":")
		if len(fields) < 3 || len(fields) > 4 || fields[0] == "" {
			return nil, fmt.Errorf("line %d: want name:bcrypt-hash:level, and perhaps :topics", n)
		}
		level, err := ui.ParseLevel(fields[2])
		if err != nil {
			return nil, fmt.Errorf("line %d: the level is view, reveal or operate", n)
		}
		if _, err := bcrypt.Cost([]byte(fields[1])); fields[1] != "" && err != nil {
			return nil, fmt.Errorf("line %d: the hash is none of bcrypt's: htpasswd -B makes one", n)
		}
		if _, twice := users[fields[0]]; twice {
			return nil, fmt.Errorf("line %d: this user has a line already", n)
		}
		if other := sameBut(users, fields[0]); other != "" {
			return nil, fmt.Errorf("line %d: %q differs from %q in its case alone", n, fields[0], other)
		}
		one := account{hash: fields[1], level: level}
		if len(fields) == 4 {
			one.scope = &ui.Scope{Topics: strings.Split(fields[3], ","), Tenants: []string{"*"}}
		}
		users[fields[0]] = one
	}
	return users, lines.Err()
}

// matches compares a password with a user's hash.
func (f *usersFile) matches(ctx context.Context, name, hash, password string) (bool, error) {
	proof := sha256.Sum256([]byte(name + "\x00" + hash + "\x00" + password))
	f.mu.Lock()
	right, unknown, slow := hash != "" && f.proven[proof], f.nobody, f.slow
	f.mu.Unlock()
	if right {
		return true, nil
	}
	leave, err := slow.enter(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	if hash == "" {
		_ = bcrypt.CompareHashAndPassword(unknown, []byte(password))
		return false, nil
	}
	if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil {
		return false, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proven[proof] = true
	return true, nil
}
