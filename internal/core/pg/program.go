package pg

// Program is the command that manages the tables, in errors and in the names of its sessions. An adapter that
// contains the commands sets it when the process starts.
var Program = "pg-ratelimit"
