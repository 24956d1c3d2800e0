package schema_test

import (
	"flag"
	"os"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

var update = flag.Bool("update", false, "write schema.sql anew")

const schemaFile = "../../../schema.sql"

// The interpreted packages cannot embed a file, so schema.sql is a copy.
func TestTheSchemaFileIsWhatAStoreRuns(t *testing.T) {
	if *update {
		if err := os.WriteFile(schemaFile, []byte(schema.File), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != schema.File {
		t.Error("schema.sql is not schema.File. Write it anew: go test ./internal/core/schema -update")
	}
}
