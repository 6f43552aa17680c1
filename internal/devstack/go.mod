// A Postgres and a Kafka for the demo and relay-dev, in a module of its own: nobody else downloads them.
module github.com/effectonce/effectonce/internal/devstack

go 1.26.0

require (
	github.com/effectonce/effectonce v0.0.0
	github.com/jackc/pgx/v5 v5.12.0
	github.com/twmb/franz-go/pkg/kfake v0.0.0-20260918054303-01f206a7e32c
	github.com/xi2/xz v0.0.0-20171230120015-48954b6210f8
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/pierrec/lz4/v4 v4.1.33 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	github.com/twmb/franz-go v1.22.2 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.15.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/effectonce/effectonce => ../..
