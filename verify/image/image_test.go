// Package image looks into the image that `make image` has made, and runs it with podman: as the image's user, on a
// read-only file system, over the tests' Postgres and Kafka. `make image-check` tells it by EFFECTONCE_IMAGE where the
// image is.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/x509"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outbox"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

const (
	binary = "usr/bin/relay"
	roots  = "etc/ssl/certs/ca-certificates.crt"
	user   = "65532:65532"
	most   = 40_000_000 // bytes of the unpacked files
)

// folder is where the image is.
func folder(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("EFFECTONCE_IMAGE")
	if dir == "" {
		t.Skip("make image-check runs it")
	}
	return dir
}

// descriptor names a file of the image by its digest.
type descriptor struct {
	Digest   string
	Platform struct{ OS, Architecture string }
}

// read decodes a file of the image, and checks its digest.
func read(t *testing.T, name, digest string, to any) {
	t.Helper()
	text := content(t, name, digest)
	if err := json.Unmarshal(text, to); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func content(t *testing.T, name, digest string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder(t), name))
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(text); digest != "" && digest != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Fatalf("%s is not %s", name, digest)
	}
	return text
}

// config is what the image says of itself.
type config struct {
	OS, Architecture string
	Config           struct {
		User, WorkingDir string
		Entrypoint, Cmd  []string
		Healthcheck      struct{ Test []string }
		Labels           map[string]string
	}
}

// image is one architecture's: its files by path, folders end with a slash.
type image struct {
	config config
	files  map[string][]byte
	modes  map[string]int64
}

// images are all, by architecture.
func images(t *testing.T) map[string]image {
	t.Helper()
	var list struct{ Manifests []descriptor }
	read(t, "manifest.json", "", &list)
	all := map[string]image{}
	for _, m := range list.Manifests {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		read(t, hexOf(m)+".manifest.json", m.Digest, &manifest)
		i := image{files: map[string][]byte{}, modes: map[string]int64{}}
		read(t, hexOf(manifest.Config), manifest.Config.Digest, &i.config)
		for _, l := range manifest.Layers {
			i.unpack(t, content(t, hexOf(l), l.Digest))
		}
		if i.config.OS != m.Platform.OS || i.config.Architecture != m.Platform.Architecture {
			t.Errorf("the image of %v says it is of %s/%s", m.Platform, i.config.OS, i.config.Architecture)
		}
		all[m.Platform.OS+"/"+m.Platform.Architecture] = i
	}
	return all
}

func hexOf(d descriptor) string { return strings.TrimPrefix(d.Digest, "sha256:") }

func (i image) unpack(t *testing.T, layer []byte) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(z); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		if i.files[h.Name], err = io.ReadAll(files); err != nil {
			t.Fatal(err)
		}
		i.modes[h.Name] = h.Mode & 0o7777 // buildah adds the kind of the file
	}
}

// TestContent: for both architectures the image has a static binary and CA certificates, which its user cannot change,
// and nothing else; it is small, and says who runs what.
func TestContent(t *testing.T) {
	want := map[string]int64{
		"etc/": 0o755, "etc/ssl/": 0o755, "etc/ssl/certs/": 0o755, roots: 0o644,
		"usr/": 0o755, "usr/bin/": 0o755, binary: 0o755,
	}
	machines := map[string]elf.Machine{"linux/amd64": elf.EM_X86_64, "linux/arm64": elf.EM_AARCH64}
	all := images(t)
	if len(all) != len(machines) {
		t.Errorf("the image is for %v", slices.Sorted(maps.Keys(all)))
	}
	for platform, i := range all {
		if !maps.Equal(i.modes, want) {
			t.Errorf("%s has %v, want %v", platform, i.modes, want)
		}
		size := 0
		for _, file := range i.files {
			size += len(file)
		}
		t.Logf("%s: %d bytes unpacked", platform, size)
		if size >= most {
			t.Errorf("%s has %d bytes, want less than %d", platform, size, most)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(i.files[roots]) {
			t.Errorf("%s has no CA certificates", platform)
		}
		checkBinary(t, i.files[binary], machines[platform])
		c := i.config.Config
		if c.User != user || !reflect.DeepEqual(c.Entrypoint, []string{"/" + binary}) || len(c.Cmd) > 0 ||
			!reflect.DeepEqual(c.Healthcheck.Test, []string{"CMD", "/" + binary, "health"}) {
			t.Errorf("%s: %+v", platform, c)
		}
		for _, label := range []string{"version", "revision", "source", "licenses"} {
			if c.Labels["org.opencontainers.image."+label] == "" {
				t.Errorf("%s has no label %s: %v", platform, label, c.Labels)
			}
		}
	}
}

func checkBinary(t *testing.T, file []byte, machine elf.Machine) {
	t.Helper()
	program, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if program.Machine != machine {
		t.Errorf("the binary is for %s, want %s", program.Machine, machine)
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("the binary for %s is linked to libraries, and the image has none", machine)
		}
	}
}

// TestOtherArchitecture: the binary for the other architecture starts in an emulator.
func TestOtherArchitecture(t *testing.T) {
	emulators := map[string]string{"arm64": "qemu-aarch64-static", "amd64": "qemu-x86_64-static"}
	for platform, i := range images(t) {
		if i.config.Architecture == runtime.GOARCH {
			continue
		}
		file := filepath.Join(t.TempDir(), "relay")
		if err := os.WriteFile(file, i.files[binary], 0o700); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), emulators[i.config.Architecture], file, "version").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		checkVersion(t, i, string(out), platform)
	}
}

func checkVersion(t *testing.T, i image, out, platform string) {
	t.Helper()
	version := i.config.Config.Labels["org.opencontainers.image.version"]
	if !strings.HasPrefix(out, version+" ") || !strings.Contains(out, platform) {
		t.Errorf("relay version says %q, want %s and %s", out, version, platform)
	}
}

// engine is podman with a store of its own. It may need neither systemd nor the right to raise limits.
type engine struct{ store []string }

func newEngine(t *testing.T) engine {
	t.Helper()
	dir, remove, err := child.TempDir("image")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	e := engine{[]string{
		"--root", dir + "/store", "--runroot", dir + "/run", "--tmpdir", dir + "/tmp", "--storage-driver", "vfs",
		"--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc",
	}}
	t.Cleanup(func() {
		cmd := exec.Command("podman", append(e.store, "rmi", "--all", "--force")...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	e.do(t, "tag", strings.TrimSpace(e.do(t, "pull", "--quiet", "dir:"+folder(t))), "relay")
	return e
}

func (e engine) try(t *testing.T, args ...string) (string, error) {
	cmd := exec.CommandContext(t.Context(), "podman", append(slices.Clone(e.store), args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("podman %s: %w: %s%s", strings.Join(args, " "), err, out, &stderr)
	}
	return string(out), err
}

func (e engine) do(t *testing.T, args ...string) string {
	t.Helper()
	out, err := e.try(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// run runs a command of relay in a container with few rights.
func (e engine) run(t *testing.T, options []string, command ...string) string {
	t.Helper()
	return e.do(t, slices.Concat([]string{
		"run", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "all", "--security-opt", "no-new-privileges",
		"--network", "host", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
	}, options, []string{"relay"}, command)...)
}

// TestRuns: in a container relay says its version, migrates, runs, is healthy and ready, publishes an event, and ends
// with code 0 at SIGTERM.
func TestRuns(t *testing.T) {
	i := images(t)["linux/"+runtime.GOARCH]
	e := newEngine(t)
	checkVersion(t, i, e.run(t, []string{"--rm"}, "version"), "linux/"+runtime.GOARCH)
	db, topic := pgtest.NewDatabase(t), kafkatest.Topic(t, 1)
	port, err := child.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	settings := []string{
		"--env", "RELAY_DATABASE_URL=" + db.URL, "--env", "RELAY_DATABASE_PLAINTEXT=true",
		"--env", "RELAY_KAFKA_BROKERS=" + strings.Join(kafkatest.Brokers(t), ","),
		"--env", fmt.Sprintf("RELAY_LISTEN=127.0.0.1:%d", port),
	}
	e.run(t, append(settings, "--rm"), "migrate")
	e.run(t, append(settings, "--detach", "--name", "relay"), "run")
	pgtest.Await(t, "relay health --ready in the container", func() (bool, error) {
		_, err := e.try(t, "exec", "relay", "/"+binary, "health", "--ready")
		if running := e.do(t, "inspect", "--format", "{{.State.Running}}", "relay"); running != "true\n" {
			return false, fmt.Errorf("the relay has ended: %s", e.do(t, "logs", "relay"))
		}
		return err == nil, nil
	})
	e.do(t, "healthcheck", "run", "relay")
	if top := e.do(t, "top", "relay", "user", "capeff", "args"); !strings.Contains(top, "65532") ||
		!strings.Contains(top, "none") {
		t.Errorf("the relay's process: %s", top)
	}
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return outbox.Append(t.Context(), tx, event.Event{Topic: topic, Type: "Started"})
	}); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "the event in Kafka", func() (bool, error) { return len(kafkatest.ReadAll(t, topic)) == 1, nil })
	e.do(t, "stop", "relay")
	if code := e.do(t, "inspect", "--format", "{{.State.ExitCode}}", "relay"); code != "0\n" {
		t.Errorf("the relay ends with code %s: %s", code, e.do(t, "logs", "relay"))
	}
}
