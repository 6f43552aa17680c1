package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestComplete(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"":                          "acknowledge archive audit",
		"par":                       "parked",
		"parked ":                   "discard edit",
		"parked sh":                 "show",
		"run --leas":                "--lease",
		"run --log-format ":         "json text",
		"run --log-format j":        "json",
		"run --log-format=j":        "--log-format=json",
		"run --log-format = j":      "json",
		"run --log-format =":        "json text",
		"parked =":                  "discard edit",
		"--log-format json stat":    "status",
		"run --database-plaintext ": "",
		"completion z":              "zsh",
		"help s":                    "scheduled secrets settings sleeping status stopping",
		"status --no-such ":         "",
		"compl":                     "completion",
	} {
		args := append([]string{"complete", "--"}, strings.Split(line, " ")...)
		code, out, stderr := command(t, environment{}, args...)
		if got := strings.Join(strings.Fields(out), " "); code != codeOK || !strings.HasPrefix(got, want) ||
			want == "" && got != "" {
			t.Errorf("%q: %q, want %q (exit code %d: %s)", line, got, want, code, stderr)
		}
	}
}

// TestCompletionScripts: each shell that is installed reads its script; bash and zsh complete with it.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// In relay's place: it says how it was called.
	relay := []byte("#!/bin/sh\nprintf '%s,' \"$@\"; echo; echo second\n")
	if err := os.WriteFile(filepath.Join(dir, "relay"), relay, 0o755); err != nil {
		t.Fatal(err)
	}
	for shell, probe := range map[string]string{
		"bash": "\nCOMP_WORDS=(relay parked ''); COMP_CWORD=2; _relay; printf '%s\\n' \"${COMPREPLY[@]}\"\n",
		"zsh":  "\ncompadd() { print -l $found }; words=(relay parked ''); CURRENT=3; _relay\n",
		"fish": "\n:\n", "pwsh": "\n",
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			name := strings.Replace(shell, "pwsh", "powershell", 1)
			code, script, stderr := command(t, environment{}, "completion", name)
			if code != codeOK || !strings.Contains(script, "relay complete -- ") {
				t.Fatalf("exit code %d: %s\n%s", code, stderr, script)
			}
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skip(err)
			}
			if shell == "zsh" {
				script = "compdef() { }\n" + script
			}
			cmd := exec.CommandContext(t.Context(), path, "-c", script+probe)
			cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir}
			out, err := cmd.CombinedOutput()
			want := map[string]string{
				"bash": "complete,--,parked,,\nsecond\n", "zsh": "complete,--,parked,,\nsecond\n",
			}[shell]
			if err != nil || string(out) != want {
				t.Errorf("%q, want %q (%v)", out, want, err)
			}
		})
	}
}
