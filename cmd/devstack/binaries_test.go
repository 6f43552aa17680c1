package devstack

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

func TestMain(m *testing.M) { child.Main(m) }

// Archives of GNU tar: programs with a library behind a link, and a file that leads out of its directory.
const (
	programs = "/Td6WFoAAATm1rRGAgAhARYAAAB0L+Wj4Cf/AL9dABcLyMeB/hJXAysOeq5gxQjWtYtSDeBD78jTkONVlcXEzDrU/+GFQmTjW69V" +
		"3fVdo5Q5tCH528TcUoF3Td+JKXA/QYelNi9qo6f3JkluQh7b/jwlo6D/evMwsB633JHax5QHA8zm0hZ96XQbPPiRdc6AAjAyUflA" +
		"oDtolceTc5kA4hoxec09o/Lf0ilAEL3Xal+RTcG3BXB5smzZWuhKBBV6PuFUS5oX1lq8jb1pYA3s3QL+XLEQTDjvrP1tuVkAAABR" +
		"g5c0KjTabAAB2wGAUAAACokpB7HEZ/sCAAAAAARZWg=="
	outside = "/Td6WFoAAATm1rRGAgAhARYAAAB0L+Wj4Cf/AGpdABdguNAyMbf3vFJQYNYT1g9bf5dw9MYTa9XxH0gMVQnMF/HiWrWow6RUEToh" +
		"wC40xVaRvCR3KpHaD6e+P4GmN3qY0eL3jhWkztv7G24kZff8FvwthjMzzQ8bM0CnX6wpoNF973JmcA0+7QAAAADn/QjtuyfaXgAB" +
		"hgGAUAAAI5I5t7HEZ/sCAAAAAARZWg=="
)

// repository serves a jar with an archive, and its checksum.
func repository(t *testing.T, archive string, damaged bool) (url string) {
	t.Helper()
	txz, err := base64.StdEncoding.DecodeString(archive)
	if err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	w, err := z.Create("postgres-x.txz")
	if err == nil {
		_, err = w.Write(txz)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	path := "/io/zonky/test/postgres/embedded-postgres-binaries-" + platform() + "/" + version + "/"
	mux := http.NewServeMux()
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = fmt.Fprintf(w, "%x\n", sha256.Sum256(jar.Bytes()))
			return
		}
		_, _ = w.Write(jar.Bytes())
		if damaged {
			_, _ = w.Write([]byte("x"))
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// TestFetch: a download is checked, and unpacked into its directory alone.
func TestFetch(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	for name, c := range map[string]struct {
		archive string
		damaged bool
		fails   string
	}{
		"programs": {archive: programs},
		"damaged":  {archive: programs, damaged: true, fails: "checksum"},
		"outside":  {archive: outside, fails: "escapes"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			home := filepath.Join(parent, "deep", "postgres")
			if err := os.Mkdir(filepath.Dir(home), 0o755); err != nil {
				t.Fatal(err)
			}
			err := fetch(t.Context(), repository(t, c.archive, c.damaged), home)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("error %v, want one about %q", err, c.fails)
				}
				if left, err := filepath.Glob(filepath.Join(parent, "deep", "*.txt")); err != nil || len(left) > 0 {
					t.Errorf("written outside: %v, %v", left, err)
				}
				return
			}
			if err != nil || !complete(home) {
				t.Fatalf("not complete: %v", err)
			}
			for file, want := range map[string]os.FileMode{"bin/initdb": 0o755, "bin": 0o755, "lib/libx.so.1": 0o644} {
				if info, err := os.Stat(filepath.Join(home, file)); err != nil || info.Mode().Perm()&want != want {
					t.Errorf("%s: %v, %v", file, info, err)
				}
			}
			if text, err := os.ReadFile(filepath.Join(home, "lib", "libx.so")); err != nil || string(text) != "lib\n" {
				t.Errorf("behind the link: %q, %v", text, err)
			}
		})
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	nowhere := repository(t, programs, false) + "/nowhere"
	if err := fetch(t.Context(), nowhere, filepath.Join(t.TempDir(), "x")); err == nil ||
		!strings.Contains(err.Error(), "404") {
		t.Errorf("without such a file: %v", err)
	}
}
