package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnit: systemd understands the unit, and finds little that the service could do beyond its work.
func TestUnit(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze here")
	}
	const unit = "effectonce-relay.service"
	text, err := os.ReadFile(filepath.Join("../../deploy/systemd", unit))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for file, content := range map[string]string{
		"etc/systemd/system/" + unit: string(text), "usr/bin/relay": "#!/bin/sh\n",
		"etc/systemd/system/wrong.service": strings.Replace(string(text), "ProtectSystem=", "ProtectSytem=", 1),
	} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.HasPrefix(content, "#!") {
			mode = 0o755
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	verify := func(name string) ([]byte, error) {
		return exec.Command(analyze, "verify", "--root="+root, "--man=no", "--recursive-errors=no",
			name).CombinedOutput()
	}
	if out, err := verify(unit); err != nil || len(out) > 0 {
		t.Errorf("verify: %v\n%s", err, out)
	}
	if out, _ := verify("wrong.service"); !strings.Contains(string(out), "ProtectSytem") {
		t.Errorf("verify finds no misspelt setting: %s", out)
	}
	// In tenths: 1.2 as it is, 9 and more without the settings that restrict it.
	if out, err := exec.Command(analyze, "security", "--offline=yes", "--threshold=15", "--no-pager",
		filepath.Join(root, "etc/systemd/system", unit)).CombinedOutput(); err != nil {
		t.Errorf("security: %v\n%s", err, out)
	}
}
