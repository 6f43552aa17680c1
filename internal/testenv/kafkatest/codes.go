package kafkatest

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

var errorRow = regexp.MustCompile(`<tr><td>([A-Z_]+)</td><td>(-?\d+)</td>`)

// ErrorCodes returns the names of all error codes that the Kafka in use defines, as it prints them itself. Without a
// real Kafka it skips the test.
func ErrorCodes(t testing.TB) map[int16]string {
	t.Helper()
	RequireReal(t)
	libs, err := Libs()
	if err != nil {
		t.Skip(err)
	}
	page, err := exec.Command("java", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(libs, "*"),
		"org.apache.kafka.common.protocol.Errors").Output()
	if err != nil {
		t.Fatalf("kafkatest: the error codes: %v", err)
	}
	codes := map[int16]string{}
	for _, row := range errorRow.FindAllSubmatch(page, -1) {
		n, err := strconv.ParseInt(string(row[2]), 10, 16)
		if err != nil {
			t.Fatalf("kafkatest: the error codes: %v", err)
		}
		codes[int16(n)] = string(row[1])
	}
	if len(codes) < 100 || codes[0] != "NONE" {
		t.Fatalf("kafkatest: Kafka defines %d error codes, and 0 is %q", len(codes), codes[0])
	}
	return codes
}
