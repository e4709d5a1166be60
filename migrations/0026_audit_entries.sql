-- The way into the audit for accounts of operators: a row must have the login and the time of its statement. A session can set its
-- UTC_TIMESTAMP(), and not SYSDATE(). Two hours are left for the hour that a time zone repeats.
CREATE VIEW outbox_audit_entries AS
  SELECT at, actor, account, via, action, target, reason, job_id, messages
  FROM outbox_audit
  WHERE account = USER() AND ABS(TIMESTAMPDIFF(SECOND, '1970-01-01', at) - UNIX_TIMESTAMP(SYSDATE())) < 7200
  WITH CASCADED CHECK OPTION;
