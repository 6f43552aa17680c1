package main

import (
	"bufio"
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
		if name := r.Header.Get(d.header); name != "" {
			if u, ok := users[name]; ok {
				return ui.Identity{Name: name, Level: u.level, Scope: u.scope}, nil
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
	if !d.users.matches(name, u.hash, password) || !known {
		return ui.Identity{}, challenge
	}
	return ui.Identity{Name: name, Level: u.level, Scope: u.scope}, nil
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
	slow   sync.Mutex                 // one at a time: guessing uses one core at most
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
	if f.nobody == nil {
		if f.nobody, err = bcrypt.GenerateFromPassword([]byte(rand.Text()), bcrypt.DefaultCost); err != nil {
			return nil, err
		}
	}
	f.users, f.at, f.size, f.proven = users, info.ModTime(), info.Size(), map[[sha256.Size]byte]bool{}
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
		one := account{hash: fields[1], level: level}
		if len(fields) == 4 {
			one.scope = &ui.Scope{Topics: strings.Split(fields[3], ","), Tenants: []string{"*"}}
		}
		users[fields[0]] = one
	}
	return users, lines.Err()
}

// matches compares a password with a user's hash.
func (f *usersFile) matches(name, hash, password string) bool {
	proof := sha256.Sum256([]byte(name + "\x00" + hash + "\x00" + password))
	f.mu.Lock()
	right := hash != "" && f.proven[proof]
	f.mu.Unlock()
	if right {
		return true
	}
	f.slow.Lock()
	defer f.slow.Unlock()
	if hash == "" {
		_ = bcrypt.CompareHashAndPassword(f.nobody, []byte(password))
		return false
	}
	if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proven[proof] = true
	return true
}
