package kafkaguard

import "testing"

func TestIsAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"kafka:9092": true, "10.0.0.1:65535": true, "[::1]:9092": true, "b-1.example.org:9094": true,
		"": false, "kafka": false, ":9092": false, "kafka:": false, "kafka:0": false, "kafka:65536": false,
		"kafka:kafka": false, `"kafka:9092"`: false, `"kafka:9092`: false, "'kafka:9092": false, " kafka:9092": false,
		"kafka:9092 ": false, "\ufeffkafka:9092": false, "kafka://kafka:9092": false,
	} {
		if got := IsAddress(address); got != want {
			t.Errorf("%q: %v", address, got)
		}
	}
}
