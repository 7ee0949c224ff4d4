// Package suite requires franz-go, so that `go test -c` can build the client's own tests.
package suite

import _ "github.com/twmb/franz-go/pkg/kgo"
